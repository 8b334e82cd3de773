"""The least that a step can take on this machine: bytes over a plain read, operations over bare dot products.

Both limits are measured in the same run with the same threads (`benchmarks/cpu/linear.cpp`), the read over as many
bytes as the model's weights have: a cache that holds part of them helps both sides.
"""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cpu_linear import INPUTS, OUTPUTS, PARAMETERS, bench_library
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.model_decoder import WeightPrecision
from kernels.cpu.step import Packed, open_library
from kernels.linear import Weight
from kernels.quantise import quantise_int4, quantise_int8

TILE = 16  # tokens; only to ask for whole KV tiles


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the machine, for one kind of weight."""

    read_bytes_per_s: float
    product_ops_per_s: float
    attention_ops_per_s: float  # of the bfloat16 dot product, whatever the KV cache holds

    def product_s(self, num_bytes: float, operations: float) -> float:
        return max(num_bytes / self.read_bytes_per_s, operations / self.product_ops_per_s)

    def attention_s(self, num_bytes: float, operations: float) -> float:
        return max(num_bytes / self.read_bytes_per_s, operations / self.attention_ops_per_s)


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of a step's parts; norms, quantising and Python have none: they could vanish behind the others."""

    products: float
    attention: float
    head: float

    @property
    def step(self) -> float:
        return self.products + self.attention + self.head


@dataclass(frozen=True, slots=True)
class StepSize:
    """`rows` computed, `attended` pairs of query and key, `read_tokens` whose KV is read, `outputs` with logits."""

    rows: int
    attended: int
    read_tokens: int
    outputs: int

    @classmethod
    def decode(cls, batch: int, context: int) -> StepSize:
        return cls(batch, batch * context, batch * context, batch)

    @classmethod
    def prefill(cls, num_tokens: int, chunk: int) -> list[StepSize]:
        """Of one prompt; only the last chunk has an output."""
        ends = [min(begin + chunk, num_tokens) for begin in range(0, num_tokens, chunk)]
        sizes = []
        for begin, end in zip(range(0, num_tokens, chunk), ends, strict=True):
            pairs = (end * (end + 1) - begin * (begin + 1)) // 2
            sizes.append(cls(end - begin, pairs, end, 1 if end == num_tokens else 0))
        return sizes


def measure_limits(weights: WeightPrecision, repeats: int) -> Limits:
    """Seconds: about one for each repeat."""
    matrix = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1))
    forms: dict[str, Weight] = {
        "int8": quantise_int8(matrix),
        "int4": quantise_int4(matrix, 32),
        "bfloat16": matrix.bfloat16(),
        "float32": matrix,
    }
    threads, seconds, x = torch.get_num_threads(), (ctypes.c_double * 2)(), torch.randn(1, INPUTS)
    kernels = open_library()
    packed, bf16 = Packed(kernels, forms[weights]), Packed(kernels, forms["bfloat16"])
    with tempfile.TemporaryDirectory() as folder:
        library = bench_library(Path(folder))
        struct, copies = ctypes.byref(packed.struct), PARAMETERS // (INPUTS * OUTPUTS)
        num_bytes = library.hr_bench_linear(struct, copies, x.data_ptr(), 1, threads, repeats, seconds)
        peaks = [library.hr_bench_peak(ctypes.byref(each.struct), threads, repeats) for each in (packed, bf16)]
    return Limits(num_bytes / seconds[1], *peaks)


def floor_of(size: StepSize, decoder: CpuDecoder, limits: Limits) -> Floor:
    config = decoder.config
    head_parameters = config.hidden_size * config.vocab_size
    layer_bytes = decoder.weight_bytes - decoder.head_bytes
    kv_bytes = decoder.block_bytes(TILE) / TILE * size.read_tokens
    pair_ops = 4 * config.num_layers * config.num_heads * config.head_dim
    return Floor(
        products=limits.product_s(layer_bytes, 2 * size.rows * layer_parameters(config)),
        attention=limits.attention_s(kv_bytes, pair_ops * size.attended),
        head=limits.product_s(decoder.head_bytes, 2 * size.outputs * head_parameters) if size.outputs else 0.0,
    )


def layer_parameters(config: ModelConfig) -> int:
    """Of all layers' linear weights."""
    return config.num_layers * sum(outputs * inputs for outputs, inputs in layer_products(config))


def layer_products(config: ModelConfig) -> list[tuple[int, int]]:
    """(outputs, inputs) of the products of one layer: qkv, attention's output, gate and up, down."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    qkv = heads + 2 * config.num_kv_heads * config.head_dim
    return [(qkv, hidden), (hidden, heads), (2 * config.intermediate_size, hidden), (hidden, config.intermediate_size)]

"""Random models of any shape at every precision of the C++ step, both decoders of them, and one tolerance table.

The reference computes the same quantised weights and rounds the same keys and values, everything else in float32: of
bfloat16 weights it shows what their products would be exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.decoder import Decoder, KvPrecision
from core_engine.llm.model_config import ModelConfig, RopeScaling, expected_shapes, is_layer_linear
from core_engine.llm.quantised_weights import EMBEDDING, HEAD
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_rows import Span, StepRows
from kernels.cpu.isa import Level
from kernels.cpu.step import open_library
from kernels.linear import Weight
from kernels.quantise import GroupQuantised, quantise_int4, quantise_int8
from tests.core_engine.llm.stepping import Stepper

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GROUPS: dict[str, Callable[[torch.Tensor], GroupQuantised]] = {
    "int8": quantise_int8,
    "int8 by 32": partial(quantise_int8, group=32),
    "int4": quantise_int4,
    "int4 by 32": partial(quantise_int4, group=32),
    "int4 symmetric": partial(quantise_int4, symmetric=True),
    "int4 symmetric by 32": partial(quantise_int4, group=32, symmetric=True),
}
PRECISIONS = [*FLOATS, *GROUPS]
KV: list[KvPrecision] = ["bfloat16", "int8"]
BLOCK = 16
# Relative RMS error of logits after two or three layers. Over a bfloat16 cache the step rounds queries and
# probabilities too, over one of int8 it keeps 16 bits of them. Of integer weights, an activation that is a hair apart
# may get the next code, as one of bfloat16 the next number: the difference grows to what the rounding itself costs.
TOLERANCE = {
    ("float32", "bfloat16"): 6e-3,
    ("float32", "int8"): 2e-3,
    ("bfloat16", "bfloat16"): 1.2e-2,
    ("bfloat16", "int8"): 1.5e-2,
    ("integers", "bfloat16"): 3e-2,
    ("integers", "int8"): 3e-2,
}


def tolerance(precision: str, kv: KvPrecision) -> float:
    return TOLERANCE[precision if precision in FLOATS else "integers", kv]


def shape(
    *,
    num_layers: int = 2,
    hidden: int = 48,
    intermediate: int = 40,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    tied: bool = True,
) -> ModelConfig:
    """`heads`: of queries, and of keys and values."""
    return ModelConfig(
        num_layers, hidden, intermediate, *heads, head_dim,
        vocab_size=97, max_positions=512, rope_theta=10_000.0, rms_norm_eps=1e-5, tie_embeddings=tied,
    )  # fmt: skip


SHAPES = {
    "smollm": shape(hidden=576, intermediate=200, heads=(9, 3), head_dim=64),
    "one head": shape(hidden=16, heads=(1, 1), tied=False),
    "eight heads": replace(shape(hidden=80, heads=(8, 8), head_dim=32), qkv_bias=True, qk_norm=True),
    "many to one": shape(intermediate=200, heads=(8, 1), head_dim=80),
    "wide heads": replace(shape(heads=(2, 1), head_dim=256), qk_norm=True),
    "window": replace(shape(hidden=80, heads=(3, 3), head_dim=128, tied=False), sliding_window=19),
    "window of one": replace(shape(), sliding_window=1),
    "dynamic": replace(shape(), rope=RopeScaling("dynamic", 4.0, original_positions=16)),
    "factors": replace(shape(head_dim=32), has_rope_factors=True),
    "yarn": replace(shape(), rope=RopeScaling("yarn", 4.0, original_positions=16, attention_factor=1.3), qkv_bias=True),
}


def random_weights(config: ModelConfig, precision: str) -> dict[str, Weight]:
    """All parameters random, and large enough to be seen in the logits."""
    generator = torch.Generator().manual_seed(0)

    def floats(name: str, size: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(size, generator=generator)
        if "norm" in name or name == "rope_freqs.weight":
            return 1 + 0.3 * noise.clamp(-3, 3)
        return noise * (0.3 if "bias" in name else 1.0 if name == EMBEDDING else 1.2 / size[-1] ** 0.5)

    return at_precision({name: floats(name, size) for name, size in expected_shapes(config).items()}, precision)


def at_precision(floats: Mapping[str, torch.Tensor], precision: str) -> dict[str, Weight]:
    """As a model of this precision is loaded: the head has 8 bits where the layers are integers."""
    if dtype := FLOATS.get(precision):
        return {name: tensor.to(dtype) for name, tensor in floats.items()}
    quantise = GROUPS[precision]
    weights = {name: quantise(tensor) if is_layer_linear(name) else tensor for name, tensor in floats.items()}
    head = quantise_int8(floats.get(HEAD, floats[EMBEDDING]))
    return {**weights, HEAD: head, EMBEDDING: floats[EMBEDDING].bfloat16()}


def cpu_decoder(
    config: ModelConfig,
    weights: Mapping[str, Weight],
    kv: KvPrecision,
    num_threads: int = 2,
    level: Level | None = None,
) -> CpuDecoder:
    return CpuDecoder(open_library(level), config, weights, kv, num_threads=num_threads)


def reference(config: ModelConfig, weights: Mapping[str, Weight], kv: KvPrecision) -> Decoder:
    """Computes in float32."""
    wide = {name: each.float() if isinstance(each, torch.Tensor) else each for name, each in weights.items()}
    return Decoder(config, wide, kv)


def ours(
    config: ModelConfig,
    precision: str,
    kv: KvPrecision,
    *,
    num_threads: int = 2,
    block_size: int = BLOCK,
    level: Level | None = None,
) -> Stepper:
    """On a cache that holds nothing but NaN."""
    decoder = cpu_decoder(config, random_weights(config, precision), kv, num_threads, level)
    steps = Stepper(decoder, num_blocks=600, block_size=block_size)
    steps.cache.tensor.fill_(0xFF)
    return steps


def one_span(sequence: Sequence, num_rows: int) -> StepRows:
    """The first rows of a prompt, the last two wanted."""
    span = Span(0, num_rows, sequence.block_table, sequence.num_prompt_tokens)
    return StepRows(sequence.token_ids[:num_rows], [span], [num_rows - 2, num_rows - 1])

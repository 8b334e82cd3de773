"""The decoder whose step is one C++ call (`kernels.cpu`): the same surface as `decoder.Decoder`, the reference.

Weights are packed once; hidden states and logits are float32. A row's result depends on its sequence alone, whatever
the batch, the chunks and the cache: the kernels add up in one order, so determinism mode needs nothing more.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from core_engine.llm.decoder import KvPrecision, Layer, layer_of, plain, rotation_table
from core_engine.llm.kv_cache import KvCache
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.rope_scaling import dynamic_frequencies
from core_engine.llm.step_input import rope_lengths
from core_engine.llm.step_rows import StepRows
from kernels.cpu import KernelUnavailable, step
from kernels.cpu.memory import Arena, zeroed
from kernels.linear import Weight
from kernels.rope import rotations

ROWS_BETWEEN = 12  # rows times layers in one call: about a millisecond and a half, which others may have to wait
MAX_HEAD_DIM = 256


def _nothing() -> None:
    """Nobody waits between layers."""


class CpuDecoder:
    """Weights of one model, packed, and `forward` over one step.

    Raises:
        KernelUnavailable: a shape that the kernel does not take, or threads that cannot be had.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        weights: Mapping[str, Weight],
        kv: KvPrecision = "bfloat16",
        *,
        num_threads: int = 0,
        cpus: Sequence[int] = (),
    ) -> None:
        """`weights` as `Decoder` takes them, of any precision; `num_threads` 0: as many as CPUs may be used.

        `cpus` pins the threads, one for each.
        """
        check_shape(config)
        self.config, self.kv = config, kv
        self.embedding = plain(weights, "token_embd.weight").contiguous()
        cos, sin = rotation_table(config, weights)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._tile_bytes = int(library.hr_kv_tile_bytes(step.KV[kv], config.num_kv_heads, config.head_dim))
        threads = num_threads or len(cpus) or len(os.sched_getaffinity(0))
        parts = _Parts(library, config, weights, threads)
        self.weight_bytes = parts.num_bytes  # that a step reads, packed; the embedding is looked up
        self.head_bytes = parts.head_bytes  # of them
        model = parts.model(self.embedding, plain(weights, "output_norm.weight"), step.KV[kv])
        try:
            self._kernel = step.StepKernel(library, model, (parts, self.embedding), threads, cpus)
        except ValueError as error:
            raise KernelUnavailable(f"the kernel's threads cannot be started: {error}") from None

    def block_bytes(self, block_size: int) -> int:
        """Keys and values of one block in all layers."""
        return self.config.num_layers * self._tile_bytes * block_size // step.TILE

    def new_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Room for the keys and values of so many blocks; `block_size` is a multiple of 16."""
        block_bytes = self._tile_bytes * block_size // step.TILE
        tensor = zeroed(self.config.num_layers * num_blocks * block_bytes)
        return KvCache(tensor.view(-1, num_blocks, block_bytes), block_dim=1, block_size=block_size)

    def forward(self, rows: StepRows, cache: KvCache, between: Callable[[], None] = _nothing) -> torch.Tensor:
        """Final hidden states, float32 [num_outputs, hidden]; writes the step's K and V into `cache` in place.

        `between` is called every few layers: what cannot wait for a whole step is done there.
        """
        hidden = torch.empty(len(rows.output_rows), self.config.hidden_size)
        arrays = self._arrays(rows, cache.block_size)
        for _ in self._kernel.run(arrays, cache.tensor, cache.block_size, hidden, self._pieces(len(rows.token_ids))):
            between()
        return hidden

    def logits(self, hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 [num_rows, vocab] of final hidden states [num_rows, hidden]; with `token_ids` only those columns."""
        ids = None if token_ids is None else token_ids.to(torch.int32).numpy()
        return self._kernel.logits(hidden.float().contiguous(), ids)

    def best(self, hidden: torch.Tensor) -> tuple[list[int], list[bool]]:
        """The token of each row's largest logit (of equal ones the first), and whether all its logits are finite."""
        tokens, logits = self._kernel.best(hidden.float().contiguous())
        return tokens.tolist(), np.isfinite(logits).tolist()

    def seconds(self) -> dict[str, float]:
        """Spent in the kernel so far, by part of the step."""
        return self._kernel.seconds()

    def _pieces(self, num_rows: int) -> Iterator[range]:
        layers = self.config.num_layers
        size = max(1, ROWS_BETWEEN // num_rows)
        return (range(begin, min(layers, begin + size)) for begin in range(0, layers, size))

    def _arrays(self, rows: StepRows, block_size: int) -> step.StepArrays:
        spans, tables, row = [], list[int](), 0
        for span in rows.spans:
            spans.append((row, span.num_rows, span.position, len(tables)))
            tables += span.block_table[: -(-span.end // block_size)]
            row += span.num_rows
        cos, sin = self._rotations(rows)
        return step.StepArrays(
            np.array(rows.token_ids, dtype=np.int32),
            np.array(spans, dtype=np.int32),
            np.array(tables, dtype=np.int32),
            cos,
            sin,
            np.array(rows.output_rows, dtype=np.int32),
        )

    def _rotations(self, rows: StepRows) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of the step's rows, each float32 [num_rows, head_dim / 2]."""
        positions, lengths = rows.positions, rope_lengths(rows, self.config)
        cos, sin = self._cos[positions], self._sin[positions]
        if lengths is not None:
            for row in (lengths > self.config.rope.original_positions).nonzero().flatten().tolist():
                inverse = dynamic_frequencies(self.config, lengths[row : row + 1])
                turned = rotations(torch.tensor(positions[row : row + 1]), inverse)
                cos[row], sin[row] = (each[0].numpy() for each in turned)
        return cos, sin


class _Parts:
    """The structs of a model's layers and head, and all that they point to."""

    def __init__(
        self, library: ctypes.CDLL, config: ModelConfig, weights: Mapping[str, Weight], num_threads: int
    ) -> None:
        self._library, self._config, self._arena = library, config, Arena()
        self._kept: list[object] = []
        with ThreadPoolExecutor(num_threads) as pool:  # packing holds no GIL
            layers = pool.map(lambda index: self._layer(layer_of(config, weights, index)), range(config.num_layers))
            self._layers = (step.Layer * config.num_layers)(*layers)
        layer_bytes = self.num_bytes
        self._head = self._packed(weights.get("output.weight", weights["token_embd.weight"]))
        self.head_bytes = self.num_bytes - layer_bytes

    @property
    def num_bytes(self) -> int:
        """Of all packed weights so far."""
        return sum(kept.num_bytes for kept in self._kept if isinstance(kept, step.Packed))

    def model(self, embedding: torch.Tensor, norm: torch.Tensor, kv: int) -> step.Model:
        config = self._config
        return step.Model(
            config.num_layers, config.hidden_size, config.intermediate_size,
            config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size,
            config.sliding_window or 0, kv, embedding.dtype == torch.bfloat16, config.rms_norm_eps,
            self._layers, self._head, self._floats(norm), embedding.data_ptr(),
        )  # fmt: skip

    def _layer(self, layer: Layer) -> step.Layer:
        return step.Layer(
            qkv=self._packed(layer.qkv, layer.qkv_bias),
            attn_out=self._packed(layer.attn_out),
            gate_up=self._packed(layer.gate_up, rows=interleaved(self._config.intermediate_size)),
            down=self._packed(layer.down),
            attn_norm=self._floats(layer.attn_norm),
            ffn_norm=self._floats(layer.ffn_norm),
            qk_norm=None if layer.qk_norm is None else self._floats(layer.qk_norm),
        )

    def _packed(self, weight: Weight, bias: torch.Tensor | None = None, rows: np.ndarray | None = None) -> step.Linear:
        packed = step.Packed(self._library, weight, bias, rows, self._arena)
        self._kept.append(packed)
        return packed.struct

    def _floats(self, tensor: torch.Tensor) -> int:
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def interleaved(intermediate: int) -> np.ndarray:
    """Rows of gate and up [2 * intermediate] by blocks of 16 in turn; -1 where the last block has none."""
    gate = np.full(-(-intermediate // step.LANES) * step.LANES, -1)
    gate[:intermediate] = np.arange(intermediate)
    up = np.where(gate >= 0, gate + intermediate, -1)
    return np.stack((gate.reshape(-1, step.LANES), up.reshape(-1, step.LANES)), 1).flatten()


def check_shape(config: ModelConfig) -> None:
    """Raises `KernelUnavailable` naming what the kernel does not take."""
    if config.hidden_size % 16:
        raise KernelUnavailable(f"the model's hidden size is {config.hidden_size}, the kernel takes multiples of 16")
    if config.head_dim % 16 or config.head_dim > MAX_HEAD_DIM:
        raise KernelUnavailable(
            f"the model's heads have {config.head_dim} dimensions, "
            f"the kernel takes multiples of 16 up to {MAX_HEAD_DIM}"
        )

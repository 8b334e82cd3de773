"""The whole step under sanitizers: what `test_step.py` runs in a process that has preloaded them.

All that the kernel is given lies in pieces of the heap, each with its own bounds, and not in the regions of `memory`.
"""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import replace

import pytest
import torch

from core_engine.llm import cpu_decoder
from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.decoder import KvPrecision
from core_engine.llm.model_config import ModelConfig
from kernels.cpu.build import build
from kernels.cpu.isa import Level
from kernels.cpu.step import declared
from tests.core_engine.llm.crowd import crowd, script
from tests.core_engine.llm.precisions import random_weights, shape
from tests.core_engine.llm.stepping import Stepper

SHAPE = shape(num_layers=2, hidden=48, intermediate=40, heads=(6, 2), head_dim=48, tied=False)
WIDE = shape(num_layers=1, hidden=80, intermediate=200, heads=(1, 1), head_dim=16)
CASES: list[tuple[ModelConfig, str, KvPrecision]] = [
    (replace(SHAPE, qk_norm=True), "int8", "int8"),
    (replace(SHAPE, sliding_window=21), "int4 by 32", "bfloat16"),
    (WIDE, "int4 symmetric", "int8"),
    (replace(SHAPE, qkv_bias=True), "bfloat16", "bfloat16"),
    (WIDE, "float32", "bfloat16"),
]
SCRIPTS = [script(70, 3, seed=1), script(15, 8, seed=2), script(1, 6, seed=3)]


class Heap:
    """As `memory.Arena`."""

    def take(self, num_bytes: int) -> torch.Tensor:
        return zeros(num_bytes)


def zeros(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


def bits_of_a_crowd(library: ctypes.CDLL, num_threads: int) -> str:
    """A digest of all logits of every case, in steps of prefill chunks, decode rows and spans to verify."""
    digest = hashlib.sha256()
    for config, precision, kv in CASES:
        decoder = CpuDecoder(library, config, random_weights(config, precision), kv, num_threads=num_threads)
        rows = crowd(Stepper(decoder, num_blocks=60, block_size=16), SCRIPTS, seed=4)
        some = decoder.logits(torch.cat(rows)[:5, : config.hidden_size], torch.tensor([96, 0, 33]))
        for each in (*rows, some):
            digest.update(each.numpy().tobytes())
    return digest.hexdigest()


def sanitized_bits(level: Level) -> str:
    """The same by the build that finds bad accesses."""
    library = declared(ctypes.CDLL(str(build(level, sanitize=True))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_decoder, "Arena", Heap)
        patch.setattr(cpu_decoder, "zeroed", zeros)
        return bits_of_a_crowd(library, num_threads=2)

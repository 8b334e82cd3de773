"""Long contexts: time to the first token by the prompt's length, a step by its context; and how much KV there is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.cpu.driving import DrivenEngine
from benchmarks.report import Row
from core_engine.settings import EngineSettings

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 7680)  # the longest leaves room for the tokens that are decoded
MAX_CONTEXT = 8192
SEQUENCE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Quadratic:
    """t = a + b n + c n^2, none negative."""

    a: float
    b: float
    c: float

    @property
    def crossing(self) -> float:
        """The n at which the quadratic term passes the linear one."""
        return self.b / self.c if self.c else math.inf


def fit(lengths: list[int], seconds: list[float]) -> Quadratic:
    """Least squares of relative errors; a term that would be negative is left out, the latest first."""
    n, t = np.array(lengths, dtype=float), np.array(seconds)
    terms = np.stack((np.ones_like(n), n, n * n)) / t
    kept = [0, 1, 2]
    while True:
        found, *_ = np.linalg.lstsq(terms[kept].T, np.ones_like(t), rcond=None)
        if (found >= 0).all():
            every = np.zeros(3)
            every[kept] = found
            return Quadratic(*every.tolist())
        del kept[int(np.argmin(found * np.mean(terms[kept], axis=1)))]


def context_rows(*, quick: bool) -> list[Row]:
    """KV x prompt length, batch 1, int8 weights."""
    lengths, rows = LENGTHS[2:5] if quick else LENGTHS, list[Row]()
    for kv in ("model", "int8"):
        driven = DrivenEngine.of(EngineSettings(kv=kv, max_context_tokens=MAX_CONTEXT, prefix_cache=False))
        driven.prefill(min(lengths))
        repeats = 1 if quick else 3
        ttft = [min(driven.prefill(length).step for _ in range(repeats)) for length in lengths]
        steps = [driven.decode(1, length, 8 if quick else 20) for length in lengths]
        curve, even = fit(list(lengths), ttft), even_tokens(driven)
        for length, first, step in zip(lengths, ttft, steps, strict=True):
            rows.append(
                {
                    "kv": kv,
                    "prompt": length,
                    "TTFT ms": 1e3 * first,
                    "prefill tok/s": length / first,
                    "decode step ms": 1e3 * step.step,
                    "attention ms": 1e3 * step.parts["attention"],
                    "quadratic passes linear at": curve.crossing,
                    "KV passes weights at batch": even / length,
                }
            )
        driven.close()
    return rows


def even_tokens(driven: DrivenEngine) -> float:
    """Tokens of all sequences together whose KV is as many bytes as the weights that a step reads."""
    return driven.decoder.weight_bytes / token_bytes(driven)


def token_bytes(driven: DrivenEngine) -> float:
    block_size = driven.engine.runner.cache.block_size
    return driven.decoder.block_bytes(block_size) / block_size


def capacity_rows() -> list[Row]:
    """What HEADRACE_ENGINE__KV_CACHE_BYTES holds by default; one block is never given out."""
    rows: list[Row] = []
    for kv in ("model", "int8"):
        driven = DrivenEngine.of(EngineSettings(kv=kv))
        cache = driven.engine.runner.cache
        tokens = (cache.num_blocks - 1) * cache.block_size
        rows.append(
            {
                "kv": "bfloat16" if kv == "model" else kv,
                "KV MiB": EngineSettings().kv_cache_bytes / 2**20,
                "bytes per token": token_bytes(driven),
                "tokens": tokens,
                f"sequences of {SEQUENCE_TOKENS}": tokens // SEQUENCE_TOKENS,
                "tokens as large as the weights": even_tokens(driven),
            }
        )
        driven.close()
    return rows

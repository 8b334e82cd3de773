"""What the engine accepts from a wire: every field of a generation in its range, before it reaches the scheduler."""

from __future__ import annotations

import math

from core_engine.contracts import GenerateRequest, SamplingParams
from core_engine.errors import InvalidRequest

MAX_STOP_IDS = 64


def check_sampling(sampling: SamplingParams) -> None:
    """Raises `InvalidRequest` naming field, value and range."""
    temperature, top_p = sampling.temperature, sampling.top_p
    _require(math.isfinite(temperature) and 0 <= temperature <= 2, "temperature", temperature, "0 to 2")
    _require(math.isfinite(top_p) and 0 < top_p <= 1, "top_p", top_p, "above 0, at most 1")
    _require(sampling.top_k >= 0, "top_k", sampling.top_k, "0 (off) or more")
    _require(sampling.max_tokens >= 1, "max_tokens", sampling.max_tokens, "at least 1")
    _require(len(sampling.stop_token_ids) <= MAX_STOP_IDS, "stop_token_ids", "too many", f"at most {MAX_STOP_IDS}")


def check_generate(request: GenerateRequest, vocab_size: int) -> None:
    """Sampling in range and every token id in the vocabulary; raises `InvalidRequest`."""
    check_sampling(request.sampling)
    ids = request.prompt_token_ids
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        _require(False, "prompt_token_ids", wrong, f"ids from 0 to {vocab_size - 1}")


def _require(holds: bool, field: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidRequest(f"{field} is {value}, expected {expected}", field=field, value=value, expected=expected)

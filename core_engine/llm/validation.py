"""What the engine accepts from a wire: every field of a generation in its range, before it reaches the scheduler.

Whether a prompt fits is the scheduler's to say, what a head needs `head_plan`'s, and what is in a JSON schema is found
by its compiler, off the engine's thread.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence

from core_engine.contracts import GenerateRequest, SamplingParams
from core_engine.errors import InvalidRequest

MAX_STOP_IDS = 64
MAX_TOP = 20  # most likely tokens that may be asked for at a place
MAX_STOPS, MAX_STOP_CHARS = 16, 256
MAX_BIASES = 1024
MAX_SCHEMA_BYTES = 64 * 1024
MAX_NAME_CHARS = 256  # of an attempt, a tenant, a predictor
SEEDS = (-(2**63), 2**64 - 1)  # what a wire's integer holds


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises `InvalidRequest` naming field, value and range."""
    _check_ranges(sampling)
    low, high = SEEDS
    seed = sampling.seed
    _require(seed is None or low <= seed <= high, "seed", seed, f"none, or {low} to {high}")
    _require(sampling.top_p > 0, "top_p", sampling.top_p, "above 0, at most 1")
    _check_lengths(sampling, vocab_size)
    if sampling.json_schema is not None:
        _check_schema(sampling, sampling.json_schema)


def check_generate(request: GenerateRequest, vocab_size: int) -> None:
    """Sampling in range, every token id in the vocabulary, names and template as they may be; raises `InvalidRequest`.

    An attempt's id is not empty, for it is all that its events are told apart by, and has no "/", which `head_plan`
    writes between it and the number of a branch.
    """
    attempt_id = request.attempt_id
    _require(
        attempt_id != "" and "/" not in attempt_id, "attempt_id", attempt_id, "1 character or more, none of them /"
    )
    for name in ("attempt_id", "tenant", "predictor"):
        value = getattr(request, name)
        _require(len(value) <= MAX_NAME_CHARS, name, value, f"at most {MAX_NAME_CHARS} characters")
    _require(request.version >= 0, "version", request.version, "0 or more")
    check_sampling(request.sampling, vocab_size)
    _check_ids("prompt_token_ids", request.prompt_token_ids, vocab_size)
    most = len(request.prompt_token_ids) if request.predictor else 0
    expected = f"0 to {most}, the prompt's tokens" if request.predictor else "0 without a predictor"
    _require(0 <= request.template_tokens <= most, "template_tokens", request.template_tokens, expected)


def _check_ranges(sampling: SamplingParams) -> None:
    """Numbers with both ends; NaN is in no range."""
    for field, value, low, high in (
        ("temperature", sampling.temperature, 0, 2),
        ("top_p", sampling.top_p, 0, 1),
        ("min_p", sampling.min_p, 0, 1),
        ("repetition_penalty", sampling.repetition_penalty, 0.01, 10),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
    ):
        _require(low <= value <= high, field, value, f"{low} to {high}")
    _require(sampling.top_k >= 0, "top_k", sampling.top_k, "0 (off) or more")
    _require(sampling.max_tokens >= 1, "max_tokens", sampling.max_tokens, "at least 1")
    most = sampling.max_tokens
    _require(0 <= sampling.min_tokens <= most, "min_tokens", sampling.min_tokens, f"0 to max_tokens = {most}")
    for field, num_top in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        _require(num_top is None or 0 <= num_top <= MAX_TOP, field, num_top, f"none, or 0 to {MAX_TOP}")


def _check_lengths(sampling: SamplingParams, vocab_size: int) -> None:
    """Lists: how many, and each member."""
    num_ids, stops, bias = len(sampling.stop_token_ids), sampling.stop, sampling.logit_bias
    _require(num_ids <= MAX_STOP_IDS, "stop_token_ids", num_ids, f"at most {MAX_STOP_IDS} ids")
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    _require(len(stops) <= MAX_STOPS, "stop", len(stops), f"at most {MAX_STOPS} strings")
    for stop in stops:
        _require(1 <= len(stop) <= MAX_STOP_CHARS, "stop", stop, f"1 to {MAX_STOP_CHARS} characters each")
    _require(len(bias) <= MAX_BIASES, "logit_bias", len(bias), f"at most {MAX_BIASES} entries")
    _check_ids("logit_bias", [token for token, _ in bias], vocab_size)
    _require(len({token for token, _ in bias}) == len(bias), "logit_bias", "a token twice", "one entry per token")
    for token, value in bias:
        _require(math.isfinite(value) and -100 <= value <= 100, f"logit_bias[{token}]", value, "-100 to 100")


def _check_schema(sampling: SamplingParams, schema: str) -> None:
    """A constrained completion ends when its text is complete: what would end it later stands against it."""
    num_bytes = len(schema.encode(errors="surrogatepass"))
    _require(num_bytes <= MAX_SCHEMA_BYTES, "json_schema", num_bytes, f"at most {MAX_SCHEMA_BYTES} bytes")
    _require(not sampling.ignore_eos, "ignore_eos", True, "false beside a json_schema")
    _require(sampling.min_tokens == 0, "min_tokens", sampling.min_tokens, "0 beside a json_schema")


def _check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        _require(False, field, wrong, f"token ids from 0 to {vocab_size - 1}")


def _require(holds: bool, field: str, value: object, expected: str) -> None:
    if not holds:
        message = f"{field} is {reprlib.repr(value)}, expected {expected}"
        raise InvalidRequest(message, field=field, value=value, expected=expected)

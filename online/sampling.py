"""How a chat or a completion is to be sampled, in the engine's words, with OpenAI's defaults."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

from core_engine.contracts import SamplingParams
from core_engine.errors import InvalidRequest, PromptTooLong
from online.openai_bodies import MAX_STOP_CHARS, MAX_STOPS, TextBody


@dataclass(frozen=True, slots=True)
class Room:
    """What a completion may take up: `asked` tokens, else the `default`, else what the prompt leaves of the context.

    `field` is where the prompt stands in the request.
    """

    context_tokens: int
    asked: int | None
    default: int | None
    field: str

    def max_tokens(self, num_prompt: int) -> int:
        """Raises `PromptTooLong` where prompt and completion do not fit into the context."""
        left, least = self.context_tokens - num_prompt, self.asked or 1
        if left >= least:
            return self.asked or min(left, self.default or left)
        raise PromptTooLong(
            f"This model's maximum context length is {self.context_tokens} tokens. However, you requested "
            f"{num_prompt + least} tokens ({num_prompt} in the {self.field}, {least} in the completion). "
            f"Please reduce the length of the {self.field} or completion.",
            field=self.field,
            value=num_prompt + least,
            expected=f"at most {self.context_tokens} tokens",
        )


def sampling_params(
    body: TextBody, max_tokens: int, vocab_size: int, *, num_top: int | None, json_schema: str | None = None
) -> SamplingParams:
    """`num_top`: as `SamplingParams.logprobs`.

    Raises:
        InvalidRequest: stop strings or biases that nobody can follow.
    """
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(body.temperature, 1.0),
        top_k=body.top_k or 0,
        top_p=_or(body.top_p, 1.0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
        stop=_stops(body.stop),
        ignore_eos=body.ignore_eos is True,
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_biases(body.logit_bias or {}, vocab_size),
        logprobs=num_top,
        json_schema=json_schema,
    )


def check_stream_options(body: TextBody) -> None:
    if body.stream_options is not None and not body.stream:
        message = "stream_options is for streams only; set stream to true"
        raise InvalidRequest(message, field="stream_options", expected="stream = true")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given
    if stops is None:
        return ()
    expected = f"a string, or up to {MAX_STOPS} of them, of 1 to {MAX_STOP_CHARS} characters"
    is_list = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not is_list or not all(isinstance(s, str) and 1 <= len(s) <= MAX_STOP_CHARS for s in stops):
        message = f"stop = {reprlib.repr(given)}: expected {expected}"
        raise InvalidRequest(message, field="stop", value=given, expected=expected)
    return tuple(stops)


def _biases(given: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Token ids are the keys of a JSON object, and so texts."""
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            expected = f"a token id from 0 to {vocab_size - 1}"
            message = f"logit_bias has the key {reprlib.repr(key)}; expected {expected}"
            raise InvalidRequest(message, field="logit_bias", value=key, expected=expected)
    return tuple((int(key), bias) for key, bias in given.items())

"""The dials of a text request: OpenAI's defaults, the engine's words, and the room that a prompt leaves."""

from __future__ import annotations

from typing import Any

import pytest

from core_engine.contracts import SamplingParams
from core_engine.errors import InvalidRequest, PromptTooLong
from core_engine.llm.validation import check_sampling
from online.openai_bodies import TextBody
from online.sampling import Room, check_stream_options, sampling_params

VOCAB = 50


def dials(**body: Any) -> SamplingParams:
    return sampling_params(TextBody.model_validate({"model": "tiny"} | body, strict=True), 9, VOCAB, num_top=None)


def test_what_is_left_out_has_openai_s_default() -> None:
    assert dials() == SamplingParams(max_tokens=9, temperature=1.0, top_p=1.0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"min_p": 0.25}, {"min_p": 0.25}),
        ({"presence_penalty": -2, "frequency_penalty": 0.5}, {"presence_penalty": -2.0, "frequency_penalty": 0.5}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"logit_bias": {"5": -100, "49": 1.5}}, {"logit_bias": ((5, -100.0), (49, 1.5))}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": []}, {"stop": ()}),
        ({"seed": -(2**63)}, {"seed": -(2**63)}),
    ],
)
def test_every_dial_reaches_the_engine_and_is_one_that_it_takes(body: dict[str, Any], expected: dict[str, Any]) -> None:
    found = dials(**body)
    assert {name: getattr(found, name) for name in expected} == expected
    check_sampling(found, VOCAB)


@pytest.mark.parametrize("stop", [["a"] * 5, [""], ["x" * 257], [1], {"a": 1}, "", 7, True])
def test_a_stop_that_is_no_text_is_refused(stop: Any) -> None:
    with pytest.raises(InvalidRequest, match="up to 4 of them") as caught:
        dials(stop=stop)
    assert caught.value.field == "stop"


@pytest.mark.parametrize("token", ["50", "-1", "x", "", "1.0", "٣", "9" * 30])
def test_a_bias_on_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest, match="0 to 49") as caught:
        dials(logit_bias={"1": 2.0, token: 1.0})
    assert (caught.value.field, caught.value.value) == ("logit_bias", token)


@pytest.mark.parametrize(
    ("asked", "default", "num_prompt", "max_tokens"),
    [(5, 16, 10, 5), (None, 16, 10, 16), (None, 16, 95, 5), (None, None, 40, 60), (20, None, 80, 20)],
)
def test_a_completion_takes_what_is_asked_or_the_default_or_what_is_left(
    asked: int | None, default: int | None, num_prompt: int, max_tokens: int
) -> None:
    assert Room(100, asked, default, "prompt").max_tokens(num_prompt) == max_tokens


@pytest.mark.parametrize(("num_prompt", "asked"), [(100, None), (101, None), (90, 11), (500, 1)])
def test_over_the_context_says_by_how_much(num_prompt: int, asked: int | None) -> None:
    with pytest.raises(PromptTooLong, match="maximum context length is 100 tokens") as caught:
        Room(100, asked, 16, "prompt").max_tokens(num_prompt)
    assert (caught.value.field, caught.value.value) == ("prompt", num_prompt + (asked or 1))


def test_stream_options_are_for_streams() -> None:
    options = {"model": "tiny", "stream_options": {"include_usage": True}}
    check_stream_options(TextBody.model_validate(options | {"stream": True}))
    with pytest.raises(InvalidRequest, match="streams only"):
        check_stream_options(TextBody.model_validate(options))

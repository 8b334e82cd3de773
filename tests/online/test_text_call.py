"""From prompts and `n` to attempts: ids, seeds, and how many a door takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import SamplingParams
from core_engine.errors import InvalidRequest
from online.openai_bodies import TextBody
from online.text_call import TextCall, attempts, deadline_of
from tests.core_engine.llm.tiny import request
from tests.core_engine.predictors.doubles import notice_predictor

SEEDED = SamplingParams(max_tokens=4, seed=5)
PROMPTS = [request(prompt, attempt_id="a", sampling=SEEDED) for prompt in ([5], [6, 7], [8])]


def call(num_prompts: int, max_streams: int = 1000, **body: Any) -> TextCall:
    wire = TextBody.model_validate({"model": "tiny"} | body, strict=True)
    return TextCall.of(wire, PROMPTS[:num_prompts], max_streams)


def test_one_choice_is_the_request_itself() -> None:
    assert call(1).requests == (PROMPTS[0],)
    assert call(1, n=1).requests == (PROMPTS[0],)


def test_of_several_each_is_an_attempt_of_its_own_in_the_order_of_the_choices() -> None:
    found = call(3, n=2)
    assert [each.attempt_id for each in found.requests] == [f"a.{index}" for index in range(6)]
    assert [each.prompt_token_ids for each in found.requests] == [(5,), (5,), (6, 7), (6, 7), (8,), (8,)]
    assert [each.sampling.seed for each in found.requests] == [5, 6] * 3
    assert found.n == 2


@given(st.integers(1, 5), st.integers(1, 5))
def test_no_two_attempts_have_one_id_and_nothing_else_of_them_changes(num_prompts: int, n: int) -> None:
    prompts = [request([index + 3], attempt_id="a", sampling=SEEDED) for index in range(num_prompts)]
    found = attempts(prompts, n)
    assert len({each.attempt_id for each in found}) == len(found) == n * num_prompts
    for index, each in enumerate(found):
        own = replace(each, attempt_id="a", sampling=SEEDED)
        assert own == prompts[index // n]


@pytest.mark.parametrize(
    ("num_prompts", "n", "max_streams", "message"),
    [
        (1, 3, 2, "n = 3: expected at most 2 choices"),
        (3, 50, 1000, "n = 50 for each of 3 prompts: expected at most 128 choices"),
        (3, 1, 2, "n = 1 for each of 3 prompts: expected at most 2 choices"),
    ],
)
def test_more_choices_than_could_ever_run_are_refused(num_prompts: int, n: int, max_streams: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        call(num_prompts, max_streams, n=n)
    assert caught.value.field == "n"


def test_what_the_reply_is_to_say() -> None:
    plain, full = call(1), call(1, stream=True, stream_options={"include_usage": True}, headrace=True)
    assert (plain.stream, plain.include_usage, plain.wants_times) == (False, False, False)
    assert (full.stream, full.include_usage, full.wants_times) == (True, True, True)


def test_a_budget_is_the_caller_s_or_the_predictor_s_or_none() -> None:
    assert deadline_of(10.0, 500.0, notice_predictor()).at_s == 10.5
    assert deadline_of(10.0, None, notice_predictor()).at_s == 40.0
    assert deadline_of(10.0, 500.0, None).at_s == 10.5
    assert not deadline_of(10.0, None, None).is_finite

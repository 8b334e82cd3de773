"""A request's stages add up to its time, whichever of its facts are there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Path, Reason, Rung, StageTimes
from core_engine.costs.facts import RUNNING, DeviceFact, Fact
from core_engine.costs.request_times import Stage, join, request_time
from tests.core_engine.costs.ledger import at, caller, device

MS = st.floats(0, 1e5)
STAGES = st.builds(StageTimes, features_ms=MS, queue_ms=MS, model_ms=MS, fallback_ms=MS, total_ms=MS)
SECONDS = st.none() | st.floats(0, 100)
DEVICES = st.builds(
    lambda queue_s, prefill_s, decode_s, tokens: device(
        queue_s=queue_s, prefill_s=prefill_s, decode_s=decode_s, prompt_tokens=tokens
    ),
    *(SECONDS, SECONDS, SECONDS),
    st.integers(0, 3),
)


@given(st.none() | STAGES, st.none() | DEVICES, st.sampled_from(Rung), st.floats(-1, 100))
def test_the_stages_of_a_request_add_up_to_its_time(
    told: StageTimes | None, device: DeviceFact | None, rung: Rung, took_s: float
) -> None:
    fact = caller(stages=told, rung=rung, arrived_at=at(0), answered_at=at(0) + timedelta(seconds=took_s))
    request = request_time(fact, device)
    assert sum(request.stages.values()) == pytest.approx(request.total_s, abs=1e-9)
    assert all(value >= 0 for value in request.stages.values())
    assert request.total_s == (max(0.0, round(took_s, 6)) if told is None else told.total_ms / 1e3)


def stages_of(device: DeviceFact | None = None, **told: Any) -> dict[Stage, float]:
    """In milliseconds, without those of no time."""
    stages = request_time(caller(**told), device).stages
    return {stage: round(value * 1e3, 6) for stage, value in stages.items() if value}


def test_a_scored_row_has_features_queue_and_scorer_and_the_rest_is_the_front_ends() -> None:
    told = StageTimes(features_ms=2.0, queue_ms=1.0, model_ms=3.0, total_ms=7.0)
    expected = {Stage.FEATURES: 2.0, Stage.QUEUE: 1.0, Stage.SCORER: 3.0, Stage.FRONT_END: 1.0}
    assert stages_of(device(), stages=told) == expected


def test_the_model_of_a_prompt_is_prefill() -> None:
    told = StageTimes(queue_ms=1.0, model_ms=30.0, total_ms=31.0)
    assert stages_of(device(prompt_tokens=90), stages=told) == {Stage.QUEUE: 1.0, Stage.PREFILL: 30.0}


def test_a_model_that_did_not_answer_is_time_that_nobody_splits() -> None:
    told = StageTimes(model_ms=45.0, fallback_ms=1.0, total_ms=46.0)
    found = stages_of(device(), stages=told, rung=Rung.STUDENT, reason=Reason.DEADLINE)
    assert found == {Stage.UNANSWERED: 45.0, Stage.FALLBACK: 1.0}


def test_a_text_has_the_times_that_the_engine_tells() -> None:
    text = device(queue_s=0.01, prefill_s=0.02, decode_s=0.06, prompt_tokens=9)
    assert stages_of(text) == {Stage.QUEUE: 10.0, Stage.PREFILL: 20.0, Stage.DECODE: 60.0, Stage.FRONT_END: 10.0}


@pytest.mark.parametrize("engine", [None, device()], ids=["no fact", "a fact without times"])
def test_a_text_of_which_nothing_is_told_is_unknown(engine: DeviceFact | None) -> None:
    assert stages_of(engine) == {Stage.UNKNOWN: 100.0}


def test_stages_side_by_side_are_in_proportion_and_said_to_overlap() -> None:
    told = StageTimes(queue_ms=30.0, fallback_ms=10.0, total_ms=20.0)
    request = request_time(caller(stages=told), device())
    assert request.overlaps
    assert request.stages[Stage.QUEUE] == pytest.approx(0.015)
    assert request.stages[Stage.FALLBACK] == pytest.approx(0.005)


def test_the_latest_of_an_attempts_facts_counts_whatever_their_order() -> None:
    facts: list[Fact] = [device(second=2.0, queue_s=0.2), caller(), device(second=1.0, queue_s=0.1, outcome=RUNNING)]
    for order in (facts, facts[::-1]):
        (request,) = join(order).requests
        assert request.device is not None
        assert request.device.queue_s == 0.2


def test_what_only_the_engine_knows_is_counted_and_a_shadow_is_nobodys_wait() -> None:
    joined = join([caller("a"), device("b"), caller("c", path=Path.SHADOW), device("c")])
    assert [request.caller.attempt_id for request in joined.requests] == ["a"]
    assert joined.without_caller == 1

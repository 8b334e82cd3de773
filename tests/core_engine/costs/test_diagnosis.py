"""A cause that was planted is found, and the shares of the slow requests' time add up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core_engine.contracts import Path, ReadCost, Reason, Rung, StageTimes
from core_engine.costs.diagnosis import Finding, GroupDiagnosis, NoRecords, diagnose
from core_engine.costs.facts import Fact
from core_engine.costs.levers import lever_for
from core_engine.costs.request_times import Stage, request_time
from tests.core_engine.costs.ledger import at, caller, device

OF_TEXT = (Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.FRONT_END)
OF_PREDICTION = (Stage.FEATURES, Stage.QUEUE, Stage.SCORER, Stage.FALLBACK, Stage.FRONT_END)
MS_FIELDS = {
    Stage.FEATURES: "features_ms",
    Stage.QUEUE: "queue_ms",
    Stage.SCORER: "model_ms",
    Stage.FALLBACK: "fallback_ms",
}
SOME_MS = st.floats(0.5, 2.0)


def text(name: str, ms: dict[Stage, float], **tokens: Any) -> list[Fact]:
    """A chat that spent `ms` in its stages."""
    total_s = sum(ms.values()) / 1e3
    times = {f"{stage}_s": ms.get(stage, 0.0) / 1e3 for stage in OF_TEXT[:3]}
    device_told = device(name, prompt_tokens=100, **times)
    fact = caller(name, predictor="notice", arrived_at=at(0), answered_at=at(total_s))
    return [fact, type(device_told)(**{**_fields(device_told), **tokens})]


def _fields(fact: Any) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in fact.__struct_fields__}


def prediction(name: str, ms: dict[Stage, float], **told: Any) -> list[Fact]:
    """A scored row that spent `ms` in its stages."""
    fields = {MS_FIELDS[stage]: value for stage, value in ms.items() if stage in MS_FIELDS}
    stages = StageTimes(**fields, total_ms=sum(ms.values()))  # type: ignore[arg-type]
    return [caller(name, stages=stages, **told), device(name)]


@given(st.data(), st.booleans(), st.integers(1, 60), st.sampled_from([0.05, 0.1, 0.5, 1.0]))
def test_a_planted_cause_is_found_first_and_shares_add_up(
    data: st.DataObject, of_text: bool, count: int, slow_share: float
) -> None:
    stages, make = (OF_TEXT, text) if of_text else (OF_PREDICTION, prediction)
    cause = data.draw(st.sampled_from(stages))
    num_slow = max(1, math.ceil(slow_share * count))
    facts: list[Fact] = []
    for number in range(count):
        ms = {stage: data.draw(SOME_MS) for stage in stages}
        ms[cause] += 50.0 if number < num_slow else 0.0
        facts += make(str(number), ms)
    (group,) = diagnose(data.draw(st.permutations(facts)), slow_share).groups
    assert (group.requests, group.slow) == (count, num_slow)
    assert group.slower_than_ms > 50.0
    assert sum(group.shares.values()) == pytest.approx(1.0)
    assert group.findings[0].stage is cause
    assert group.findings[0].share == pytest.approx(group.shares[cause])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(Path), SOME_MS), min_size=1, max_size=40))
def test_every_request_is_in_the_group_of_its_predictor_and_path(asked: list[tuple[str, Path, float]]) -> None:
    facts = [
        fact
        for number, (name, path, ms) in enumerate(asked)
        for fact in prediction(str(number), {Stage.QUEUE: ms}, predictor=name, path=path)
    ]
    shown = [(name, str(path)) for name, path, _ in asked if path is not Path.SHADOW]
    assume(shown)
    made = diagnose(facts)
    assert made.requests == len(shown) == sum(group.requests for group in made.groups)
    for group in made.groups:
        assert group.requests == shown.count((group.predictor, group.path))


def group_of(*requests: list[Fact]) -> GroupDiagnosis:
    (group,) = diagnose([fact for facts in requests for fact in facts]).groups
    return group


def slow_text(**tokens: Any) -> Finding:
    """The first finding about one slow chat among nine others of 100 prompt tokens, of which 80 were cached."""
    stage = Stage.DECODE if "completion_tokens" in tokens else Stage.PREFILL
    usual = {"cached_tokens": 80, "completion_tokens": 20}
    others = [text(str(number), {stage: 10.0}, **usual) for number in range(9)]
    return group_of(*others, text("slow", {stage: 100.0}, **usual | tokens)).findings[0]


def test_long_prompts_are_told_from_missed_caches() -> None:
    longer, missed, neither = (
        slow_text(prompt_tokens=900, cached_tokens=0),
        slow_text(cached_tokens=0),
        slow_text(),
    )
    assert "shorter prompts: the slow ones have longer ones" in longer.lever
    assert (longer.figures["prompt_tokens_slow"], longer.figures["prompt_tokens_others"]) == (900, 100)
    assert "the prefix cache: the slow ones miss it" in missed.lever
    assert (missed.figures["cached_share_slow"], missed.figures["cached_share_others"]) == (0.0, 0.8)
    assert "other work shares the same steps" in neither.lever


def test_many_tokens_are_told_from_slow_ones() -> None:
    many, slow = slow_text(completion_tokens=200), slow_text(completion_tokens=20)
    assert "fewer tokens" in many.lever
    assert many.figures["completion_tokens_slow"] == 200
    assert "wait longer for each token" in slow.lever
    assert slow.figures["ms_per_token_slow"] == pytest.approx(100 / 19)


def test_rows_wait_for_the_running_step_and_texts_for_a_seat() -> None:
    waiting = {Stage.QUEUE: 90.0}
    assert "layer of the running step" in group_of(prediction("a", waiting)).findings[0].lever
    assert "engine.interactive.max_seats" in group_of(text("a", waiting)).findings[0].lever


def test_features_name_reads_and_what_the_cache_gave() -> None:
    cost = ReadCost(reads=4, hits=4, bytes=900, round_trips=1, cached=0)
    (finding,) = group_of(prediction("a", {Stage.FEATURES: 20.0}, feature=cost)).findings
    assert (finding.stage, finding.others_ms, finding.share) == (Stage.FEATURES, None, 1.0)
    assert "features.cache_bytes" in finding.lever
    assert (finding.figures["reads_slow"], finding.figures["bytes_slow"]) == (4, 900)


def test_a_model_that_did_not_answer_is_named_with_its_reasons() -> None:
    told = StageTimes(model_ms=45.0, total_ms=46.0)
    facts: list[Fact] = [caller(str(n), stages=told, rung=Rung.PRIOR, reason=Reason.DEADLINE) for n in range(3)]
    (group,) = diagnose(facts, slow_share=1.0).groups
    assert group.findings[0].stage is Stage.UNANSWERED
    assert group.findings[0].figures == {"deadline": 3.0}
    assert group.degraded == 3


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_has_a_lever(stage: Stage) -> None:
    lever, _ = lever_for(stage, [request_time(caller(), None)], [])
    assert lever


def test_p99_needs_a_hundred_requests() -> None:
    of = [prediction(str(number), {Stage.QUEUE: 1.0 + number}) for number in range(100)]
    assert group_of(*of[:99]).p99_ms is None
    assert group_of(*of).p99_ms == pytest.approx(99.0)


def test_what_the_records_cannot_tell_is_said() -> None:
    told = StageTimes(queue_ms=30.0, total_ms=20.0)
    notes = "\n".join(diagnose([caller("a"), caller("b", stages=told), device("b"), device("c")]).notes)
    assert "1 of 2 requests have time that no fact splits" in notes
    assert "1 requests had stages side by side" in notes
    assert "1 attempts are known to the engine only" in notes
    assert "not in any record" in notes


def test_requests_that_were_late_or_degraded_are_counted() -> None:
    late = caller("a", delivered_in_time=False)
    (group,) = diagnose([late, caller("b"), caller("c", reason=Reason.DEADLINE, rung=Rung.PRIOR)]).groups
    assert (group.late, group.degraded) == (1, 1)


@pytest.mark.parametrize("facts", [[], [device()]], ids=["nothing", "the engine's alone"])
def test_without_a_request_there_is_nothing_to_say(facts: list[Fact]) -> None:
    with pytest.raises(NoRecords, match="no caller has told of a request"):
        diagnose(facts)

"""A door at its limit and an engine that is silent: the model is passed over at once, with the reason."""

from __future__ import annotations

import asyncio

import pytest

from core_engine.breaker import BreakerState
from core_engine.contracts import Deadline, Reason, Rung
from core_engine.errors import DeadlineExceeded, EngineRefused, HeadraceError
from core_engine.gradient_limit import GradientLimit
from core_engine.predictors.declaration import FeatureUse, OnState, Precomputed
from core_engine.predictors.model_records import MAX_VERSIONS, ModelRecords
from core_engine.predictors.places import Places
from core_engine.readers import StoredPrediction
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import MEAN_DELAY, STUDENT_SCORE, FakePredictions, delay_predictor


def full() -> Places:
    """No place for anybody."""
    return Places(GradientLimit(initial=0, smallest=0, largest=0), max_waiting=0)


async def test_over_the_limit_the_next_rung_answers_and_neither_store_nor_engine_is_asked(ladder: Ladder) -> None:
    ladder.places = full()
    prediction = await ladder.predict()
    assert (prediction.rung, prediction.value, prediction.reason) == (Rung.STUDENT, STUDENT_SCORE, Reason.OVERLOADED)
    assert prediction.feature_failure == "overloaded"
    assert "0 are in hand (the limit is 0 of a predictor), and a turn of its event loop takes" in str(prediction.detail)
    assert (ladder.engine.score_requests, ladder.features.keys) == ([], [])
    assert ladder.sample(
        "headrace_predictions_total", predictor="delay", version="1", rung="student", reason="overloaded"
    )


@pytest.mark.parametrize(
    ("below", "answered"),
    [((Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR), Rung.STUDENT), ((Rung.PRECOMPUTED, Rung.PRIOR), Rung.PRECOMPUTED)],
)
async def test_over_the_limit_a_look_up_is_for_those_who_have_no_student(
    ladder: Ladder, below: tuple[Rung, ...], answered: Rung
) -> None:
    ladder.places = full()
    ladder.predictions = FakePredictions({"JFK-LAX": StoredPrediction(0.625, "g7", 60.0)})
    nightly = Precomputed(key=("origin", "dest"), max_age_s=3600.0)
    predictor = delay_predictor(ladder.folder, precomputed=nightly, ladder=(Rung.MODEL, *below))
    prediction = await ladder.predict(predictor=predictor)
    assert (prediction.rung, prediction.reason) == (answered, Reason.OVERLOADED)
    assert len(ladder.predictions.asked) == (answered is Rung.PRECOMPUTED)


async def test_a_feature_that_nobody_may_do_without_is_read_over_the_limit_too(ladder: Ladder) -> None:
    ladder.places = full()
    uses = (FeatureUse(ref=MEAN_DELAY, on_missing=OnState.REFUSE),)
    prediction = await ladder.predict(predictor=delay_predictor(ladder.folder, features=uses))
    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, Reason.OVERLOADED)
    assert len(ladder.features.keys) == 1


async def test_a_predictor_that_fails_closed_says_none_over_the_limit(ladder: Ladder) -> None:
    ladder.places = full()
    prediction = await ladder.predict(predictor=delay_predictor(ladder.folder, fail_open=False))
    assert (prediction.rung, prediction.reason) == (Rung.NONE, Reason.OVERLOADED)


async def test_without_the_model_no_place_is_needed(ladder: Ladder) -> None:
    ladder.places = full()
    prediction = await ladder.predict(rungs=(Rung.STUDENT,))
    assert (prediction.rung, prediction.reason, len(ladder.features.keys)) == (Rung.STUDENT, None, 1)


async def test_two_turns_of_a_busy_loop_are_kept_for_the_rungs_below(ladder: Ladder) -> None:
    now = [0.0]
    ladder.places = Places(GradientLimit(), clock=lambda: now[0])
    declared = (await ladder.predict(deadline=Deadline.after(1e6))).budget.reserve_ms
    now[0] += 60.0  # before the turn that the first request has asked for
    await asyncio.sleep(0)
    prediction = await ladder.predict(deadline=Deadline.after(1e6))
    assert (prediction.rung, prediction.budget.reserve_ms) == (Rung.MODEL, declared + 120_000.0)


async def test_every_place_comes_back_whatever_became_of_the_request(ladder: Ladder) -> None:
    ladder.places = Places(GradientLimit())
    await ladder.predict()
    ladder.engine.lose()
    await ladder.predict()
    assert (ladder.places.in_flight, ladder.places.num_waiting) == (0, 0)


class SlowEngineClock:
    """Moves on by what an engine that does not answer takes: the model's whole budget."""

    def __init__(self, ladder: Ladder, error: HeadraceError, each_s: float) -> None:
        self.now_s = 100.0
        self.num_asked = 0
        self._score = ladder.engine.score
        self._error, self._each_s = error, each_s
        ladder.engine.score = self.score  # type: ignore[method-assign, assignment]

    def __call__(self) -> float:
        return self.now_s

    async def score(self, request: object) -> object:
        self.num_asked += 1
        self.now_s += self._each_s
        raise self._error


async def outcomes(ladder: Ladder, clock: SlowEngineClock, count: int) -> list[Reason | None]:
    ladder.places = Places(GradientLimit())
    flow = ladder.flow(clock)
    predictor = delay_predictor(ladder.folder, budget_ms=100.0)
    found = []
    for _ in range(count):
        deadline = Deadline(clock.now_s + 0.5, clock)
        found.append((await ladder.predict(deadline=deadline, clock=clock, predictor=predictor, flow=flow)).reason)
    assert (flow.engine_breaker is BreakerState.CLOSED) == (Reason.BREAKER_OPEN not in found)
    return found


async def test_an_engine_that_is_silent_is_not_asked_by_everybody(ladder: Ladder) -> None:
    clock = SlowEngineClock(ladder, DeadlineExceeded("late"), each_s=0.125)
    reasons = await outcomes(ladder, clock, 20)
    assert reasons == [Reason.DEADLINE] * 5 + [Reason.BREAKER_OPEN] * 15
    assert clock.num_asked == 5


@pytest.mark.parametrize(
    ("error", "each_s"),
    [
        (DeadlineExceeded("late"), 0.01),  # its callers had no time: nothing is known of the engine
        (EngineRefused("full"), 0.1),  # it answers
    ],
)
async def test_what_says_nothing_of_the_engine_opens_no_breaker(
    ladder: Ladder, error: HeadraceError, each_s: float
) -> None:
    clock = SlowEngineClock(ladder, error, each_s)
    assert Reason.BREAKER_OPEN not in await outcomes(ladder, clock, 100)
    assert clock.num_asked == 100


async def test_a_job_asks_as_long_as_it_runs(ladder: Ladder) -> None:
    clock = SlowEngineClock(ladder, DeadlineExceeded("late"), each_s=0.1)
    flow = ladder.flow(clock)
    for _ in range(20):
        assert (await ladder.predict(clock=clock, flow=flow)).reason is Reason.DEADLINE
    assert clock.num_asked == 20


def test_the_oldest_records_make_room(ladder: Ladder) -> None:
    records = ModelRecords(lambda: 0.0)
    for version in range(1, MAX_VERSIONS + 3):
        records.of(delay_predictor(ladder.folder, version=version))
    assert len(records.by_version) == MAX_VERSIONS
    assert "delay:2" not in records.by_version
    assert records.by_version[f"delay:{MAX_VERSIONS + 2}"].breaker.state is BreakerState.CLOSED

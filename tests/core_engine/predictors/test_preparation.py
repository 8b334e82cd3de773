"""What is below the model is begun when the model is late, and never while it is as quick as usual."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from core_engine.contracts import Deadline, Prediction, Reason, Rung, ScoreRequest, ScoreResult, Stored
from core_engine.errors import DeadlineExceeded, EngineRefused, HeadraceError
from core_engine.predictors.declaration import Precomputed
from core_engine.predictors.preparation import when_at_risk
from core_engine.readers import StoredPrediction
from core_engine.scoring.student import OnnxStudent
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import (
    MODEL_SCORE,
    STUDENT_SCORE,
    FakeEngine,
    FakePredictions,
    delay_predictor,
)

KEY = "JFK-LAX"
LADDER = (Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR)
FAR_S = 30.0  # a budget that no test uses up


class HeldEngine(FakeEngine):
    """Answers when a test says so: with its score, or with what it is given to raise."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()

    async def score(self, request: ScoreRequest) -> ScoreResult:
        self.asked.set()
        self.error = await self.answer
        return await super().score(request)


class HeldPredictions(FakePredictions):
    """Tells when it was asked, and answers when a test says so."""

    def __init__(self) -> None:
        super().__init__({KEY: StoredPrediction(0.625, "g7", 60.0)})
        self.begun, self.release = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def lookup(self, predictor: str, entity: str, deadline: Deadline) -> StoredPrediction | None:
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return await super().lookup(predictor, entity, deadline)


class Late(NamedTuple):
    engine: HeldEngine
    predictions: HeldPredictions
    predicting: asyncio.Task[Prediction]


@pytest.fixture
async def late(ladder: Ladder) -> Late:
    """A request whose model is at risk as soon as it is asked: a look-up takes all the time that there is."""
    engine, predictions = HeldEngine(), HeldPredictions()
    ladder.engine, ladder.predictions = engine, predictions
    nightly = Precomputed(key=("origin", "dest"), max_age_s=3600.0)
    ladder.predictor = delay_predictor(ladder.folder, precomputed=nightly, ladder=LADDER)
    flow = ladder.flow()
    for _ in range(32):
        flow._fallbacks._lookups.add(FAR_S)
    return Late(engine, predictions, asyncio.create_task(ladder.predict(deadline=Deadline.after(FAR_S), flow=flow)))


async def test_a_look_up_is_ready_when_the_model_misses(late: Late) -> None:
    engine, predictions, predicting = late
    predictions.release.set()
    await predictions.begun.wait()
    assert not engine.answer.done()
    engine.answer.set_result(DeadlineExceeded("late"))
    prediction = await predicting
    assert (prediction.rung, prediction.value, prediction.reason) == (Rung.PRECOMPUTED, 0.625, Reason.DEADLINE)
    assert prediction.stored == Stored("g7", 60.0)
    assert len(predictions.asked) == 1


async def test_a_model_that_answers_after_all_ends_what_was_begun(late: Late) -> None:
    engine, predictions, predicting = late
    await predictions.begun.wait()
    engine.answer.set_result(None)
    prediction = await predicting
    assert (prediction.rung, prediction.value, prediction.stored) == (Rung.MODEL, MODEL_SCORE, None)
    assert predictions.cancelled
    assert prediction.usage.feature.reads == 2  # the look-up was sent, and is paid for


async def test_a_model_that_misses_early_waits_for_the_look_up_that_is_on_its_way(late: Late) -> None:
    engine, predictions, predicting = late
    await predictions.begun.wait()
    engine.answer.set_result(EngineRefused("full"))
    await asyncio.sleep(0)
    predictions.release.set()
    prediction = await predicting
    assert (prediction.rung, len(predictions.asked)) == (Rung.PRECOMPUTED, 1)


async def test_what_is_not_stored_has_the_student_ready(late: Late) -> None:
    engine, predictions, predicting = late
    predictions.stored = {}
    predictions.release.set()
    await predictions.begun.wait()
    engine.answer.set_result(DeadlineExceeded("late"))
    prediction = await predicting
    assert (prediction.rung, prediction.value) == (Rung.STUDENT, STUDENT_SCORE)
    assert "precomputed: nothing is stored" in (prediction.detail or "")


async def test_a_caller_that_goes_away_leaves_no_look_up_behind(late: Late) -> None:
    _, predictions, predicting = late
    await predictions.begun.wait()
    predicting.cancel()
    await asyncio.gather(predicting, return_exceptions=True)
    assert predictions.cancelled


@pytest.mark.parametrize("deadline", [Deadline.never(), Deadline.after(FAR_S * 10_000)])
async def test_nothing_is_prepared_while_the_model_is_as_quick_as_usual(
    ladder: Ladder, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    students: list[object] = []
    monkeypatch.setattr(OnnxStudent, "score", lambda *given: students.append(given))
    flow = ladder.flow()
    for _ in range(40):
        assert (await ladder.predict(deadline=deadline, flow=flow)).rung is Rung.MODEL
    assert (students, ladder.predictions.asked) == ([], [])


@pytest.mark.parametrize(
    ("usual_s", "lookup_s", "at_s"),
    [
        (None, 0.002, 20.0),  # half of what the model may take
        (1.0, 0.002, 20.0),
        (25.0, 0.002, 25.0),  # as long as it usually takes, where that is longer
        (39.0, 3.0, 37.0),  # but in time for a look-up
        (None, 50.0, 0.0),
    ],
)
def test_the_rungs_below_are_begun_when_the_model_is_late_and_in_time_for_a_look_up(
    usual_s: float | None, lookup_s: float, at_s: float
) -> None:
    assert when_at_risk(40.0, usual_s, lookup_s) == at_s

"""Every ladder that can be declared against everything that can be wrong: who answers, why, and where that is told."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from msgspec.structs import replace

from core_engine.contracts import Prediction, ReadCost, Reason, Rung
from core_engine.costs.facts import CallerFact
from core_engine.errors import (
    DeadlineExceeded,
    EngineRefused,
    EngineUnavailable,
    HeadraceError,
    StoreBreakerOpen,
    StoreUnavailable,
)
from core_engine.predictors.declaration import FeatureUse, OnState, Precomputed, Predictor, Student
from core_engine.readers import StoredPrediction
from core_engine.scoring.artifact import write_artifact
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import MEAN_DELAY, MODEL_SCORE, PRIOR_RATE, STUDENT_SCORE, delay_predictor

RUNGS = (Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR)
LADDERS = [ladder for length in range(1, 5) for ladder in permutations(RUNGS, length)]
KEY, STORED_VALUE = "JFK-LAX", 0.625
VALUES = {
    Rung.MODEL: MODEL_SCORE,
    Rung.PRECOMPUTED: STORED_VALUE,
    Rung.STUDENT: STUDENT_SCORE,
    Rung.PRIOR: PRIOR_RATE,
    Rung.NONE: None,
}
ENGINE: dict[str, tuple[HeadraceError | None, Reason | None]] = {
    "answers": (None, None),
    "lost": (EngineUnavailable("lost"), Reason.ENGINE_UNAVAILABLE),
    "full": (EngineRefused("full"), Reason.ENGINE_REFUSED),
    "late": (DeadlineExceeded("late"), Reason.DEADLINE),
    "broken": (HeadraceError("the scorer failed"), Reason.MODEL_ERROR),
}
STORE: dict[str, tuple[StoredPrediction | HeadraceError | None, Reason | None]] = {
    "fresh": (StoredPrediction(STORED_VALUE, "g7", 60.0, ReadCost(2, 2, 9, 2)), None),
    "absent": (None, Reason.NOT_PRECOMPUTED),
    "old": (StoredPrediction(STORED_VALUE, "g6", 3601.0), Reason.PRECOMPUTED_TOO_OLD),
    "away": (StoreUnavailable("away"), Reason.STORE_UNAVAILABLE),
    "late": (DeadlineExceeded("late"), Reason.DEADLINE),
    "not asked": (StoreBreakerOpen("open"), Reason.BREAKER_OPEN),
}


@pytest.fixture
def declared(ladder: Ladder) -> Predictor:
    """With every rung; a test replaces what it is about. No stall of the machine's is a look-up that was late."""
    ladder.feature_cap_s = 60.0
    nightly = Precomputed(key=("origin", "dest"), max_age_s=3600.0)
    return delay_predictor(ladder.folder, ladder=RUNGS, precomputed=nightly)


def expected(
    predictor: Predictor, misses: dict[Rung, Reason | None], *, whole: bool
) -> tuple[Rung, list[tuple[Rung, Reason]]]:
    """The first rung that may answer and has an answer, and those above it with their reasons."""
    above: list[tuple[Rung, Reason]] = []
    for rung in predictor.ladder:
        if rung is not Rung.MODEL and not predictor.fail_open:
            continue
        reason = Reason.MODEL_ERROR if rung is Rung.STUDENT and not whole else misses.get(rung)
        if reason is None:
            return rung, above
        above.append((rung, reason))
    return Rung.NONE, above


def check(prediction: Prediction, answered: Rung, above: list[tuple[Rung, Reason]]) -> None:
    assert (prediction.rung, prediction.value) == (answered, VALUES[answered])
    assert prediction.degraded == (answered is not Rung.MODEL)
    fallback = Reason.NO_RUNG if answered is Rung.NONE else None
    assert prediction.reason == (above[0][1] if above else fallback)
    told = [part.split(":")[0] for part in (prediction.detail or "").split("; ") if part]
    assert told == [str(rung) for rung, _ in above]
    assert (prediction.stored is not None) == (answered is Rung.PRECOMPUTED)


@pytest.mark.parametrize("store", STORE)
@pytest.mark.parametrize("engine", ENGINE)
async def test_whatever_fails_the_best_rung_that_is_left_answers_with_the_first_reason(
    ladder: Ladder, declared: Predictor, engine: str, store: str
) -> None:
    error, missed = ENGINE[engine]
    stored, not_stored = STORE[store]
    ladder.engine.error = error
    if isinstance(stored, HeadraceError):
        ladder.predictions.error = stored
    elif stored is not None:
        ladder.predictions.stored = {KEY: stored}
    told: list[tuple[Rung, Reason | None]] = []
    for rungs in LADDERS:
        predictor = replace(declared, ladder=rungs)
        prediction = await ladder.predict(predictor=predictor)
        check(prediction, *expected(predictor, {Rung.MODEL: missed, Rung.PRECOMPUTED: not_stored}, whole=True))
        told.append((prediction.rung, prediction.reason))
    assert [(fact.rung, fact.reason) for fact in ladder.facts() if isinstance(fact, CallerFact)] == told
    for (rung, reason), count in Counter(told).items():
        labels = {"predictor": "delay", "version": "1", "rung": rung, "reason": reason or ""}
        assert ladder.sample("headrace_predictions_total", **labels) == count


@pytest.mark.parametrize("fail_open", [True, False])
@pytest.mark.parametrize("engine", ["answers", "lost"])
async def test_a_broken_student_and_a_closed_ladder_change_who_is_left(
    ladder: Ladder, declared: Predictor, engine: str, fail_open: bool
) -> None:
    ladder.engine.error, missed = ENGINE[engine]
    broken = Student(artifact=write_artifact(ladder.folder / "broken.onnx", b"no model"))
    for rungs in LADDERS:
        predictor = replace(declared, ladder=rungs, fail_open=fail_open, student=broken)
        misses = {Rung.MODEL: missed, Rung.PRECOMPUTED: Reason.NOT_PRECOMPUTED}
        check(await ladder.predict(predictor=predictor), *expected(predictor, misses, whole=False))


@pytest.mark.parametrize("rung", RUNGS)
async def test_each_rung_can_be_asked_alone(ladder: Ladder, declared: Predictor, rung: Rung) -> None:
    ladder.predictions.stored = {KEY: StoredPrediction(STORED_VALUE, "g7", 60.0)}
    prediction = await ladder.predict(predictor=declared, rungs=(rung,))
    check(prediction, rung, [])
    assert (len(ladder.engine.score_requests), len(ladder.predictions.asked)) == (
        rung is Rung.MODEL,
        rung is Rung.PRECOMPUTED,
    )


@pytest.mark.parametrize(("on_missing", "answered"), [(OnState.USE, Rung.MODEL), (OnState.NEXT_RUNG, Rung.STUDENT)])
async def test_a_store_that_is_not_asked_is_named_in_the_detail(
    ladder: Ladder, on_missing: OnState, answered: Rung
) -> None:
    ladder.features.failure = "breaker_open"
    uses = (FeatureUse(ref=MEAN_DELAY, on_missing=on_missing),)
    prediction = await ladder.predict(predictor=delay_predictor(ladder.folder, features=uses))
    assert (prediction.rung, prediction.feature_failure) == (answered, "breaker_open")
    assert (prediction.detail is None) or "(breaker_open)" in prediction.detail

"""The rung between the model and the student: what a batch job stored, if it is there and not too old."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from core_engine.contracts import Deadline, ReadCost, Reason, Rung
from core_engine.costs.facts import CallerFact
from core_engine.errors import ConfigurationError, DeadlineExceeded, HeadraceError, StoreUnavailable
from core_engine.predictors.declaration import Precomputed, Predictor
from core_engine.predictors.soundness import check_declaration
from core_engine.readers import StoredPrediction
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import INPUTS, STUDENT_SCORE, FakePredictions, delay_predictor

KEY = "JFK-LAX-20131105T223000Z"
LADDER = (Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR)


def nightly(folder: Path, **changes: object) -> Predictor:
    declared = Precomputed(key=("origin", "dest", "departure"), max_age_s=3600.0)
    return delay_predictor(folder, **{"precomputed": declared, "ladder": LADDER, **changes})


@pytest.fixture
def night(ladder: Ladder, tmp_path: Path) -> Ladder:
    """No engine; one prediction stored under the key of the request."""
    ladder.predictor = nightly(tmp_path)
    ladder.predictions = FakePredictions({KEY: StoredPrediction(0.625, "g7", 60.0, ReadCost(2, 2, 9, 2))})
    ladder.engine.lose()
    return ladder


async def test_without_an_engine_the_stored_prediction_answers(night: Ladder) -> None:
    prediction = await night.predict()
    assert (prediction.rung, prediction.value) == (Rung.PRECOMPUTED, 0.625)
    assert prediction.reason is Reason.ENGINE_UNAVAILABLE
    assert prediction.scores == {"late": 0.625}
    assert night.predictions.asked == [("delay:1", KEY)]
    assert prediction.usage.feature == ReadCost(1, 1, 40, 1) + ReadCost(2, 2, 9, 2)
    (fact,) = night.facts()
    assert isinstance(fact, CallerFact)
    assert (fact.rung, fact.feature.reads) == (Rung.PRECOMPUTED, 3)


async def test_while_the_model_answers_nothing_is_looked_up(ladder: Ladder, tmp_path: Path) -> None:
    ladder.predictor, ladder.predictions = nightly(tmp_path), FakePredictions({})
    assert (await ladder.predict()).rung is Rung.MODEL
    assert ladder.predictions.asked == []


async def test_the_key_is_the_instant_whatever_the_offset(night: Ladder) -> None:
    assert (await night.predict(INPUTS | {"departure": "2013-11-05T22:30:00Z"})).rung is Rung.PRECOMPUTED


@pytest.mark.parametrize(
    ("stored", "detail"),
    [
        (None, f"precomputed: nothing is stored for {KEY}"),
        (StoredPrediction(0.6, "g6", 3601.0), "precomputed: generation g6 is 3601 s old, above 3600 s"),
        (StoredPrediction("text", "g6", 1.0), "precomputed: generation g6 holds no number"),
        (StoredPrediction(float("nan"), "g6", 1.0), "precomputed: expected one finite score"),
    ],
)
async def test_what_cannot_be_used_is_a_miss_with_its_reason(
    night: Ladder, stored: StoredPrediction | None, detail: str
) -> None:
    night.predictions.stored = {KEY: stored} if stored else {}
    prediction = await night.predict()
    assert (prediction.rung, prediction.value) == (Rung.STUDENT, STUDENT_SCORE)
    assert prediction.detail is not None
    assert detail in prediction.detail


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("away"), Reason.STORE_UNAVAILABLE),
        (DeadlineExceeded("late"), Reason.DEADLINE),
        (ConfigurationError("bytes of another release"), Reason.MODEL_ERROR),
    ],
)
async def test_a_store_that_fails_is_the_next_rung(night: Ladder, error: HeadraceError, reason: Reason) -> None:
    night.predictor = msgspec.structs.replace(night.predictor, ladder=LADDER[1:])
    night.predictions.error = error
    prediction = await night.predict()
    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, reason)
    assert f"precomputed: {error}" in (prediction.detail or "")


async def test_each_miss_above_has_its_word(night: Ladder) -> None:
    night.predictor = msgspec.structs.replace(night.predictor, ladder=LADDER[1:])
    night.predictions.stored = {}
    assert (await night.predict()).reason is Reason.NOT_PRECOMPUTED
    night.predictions.stored = {KEY: StoredPrediction(0.6, "g6", 1e9)}
    assert (await night.predict()).reason is Reason.PRECOMPUTED_TOO_OLD


async def test_past_the_deadline_nothing_is_asked_of_a_store(night: Ladder) -> None:
    prediction = await night.predict(deadline=Deadline(time.monotonic()))
    assert prediction.rung is Rung.STUDENT
    assert night.predictions.asked == []
    assert "no time was left for a look-up" in (prediction.detail or "")


async def test_a_look_up_has_a_deadline_of_its_own(night: Ladder) -> None:
    await night.predict()
    (deadline,) = night.predictions.deadlines
    assert deadline.is_finite


async def test_a_job_never_answers_from_what_is_stored(night: Ladder) -> None:
    assert (await night.predict(is_batch=True)).rung is Rung.STUDENT
    assert night.predictions.asked == []


async def test_where_no_reader_is_connected_the_rung_is_passed_over(night: Ladder) -> None:
    night.connect_predictions = False
    prediction = await night.predict()
    assert prediction.rung is Rung.STUDENT
    assert "no stored predictions are connected" in (prediction.detail or "")


async def test_a_store_of_features_that_is_away_is_told_even_where_the_model_answers(ladder: Ladder) -> None:
    assert (await ladder.predict()).feature_failure is None
    ladder.features.failure = "store_unavailable"
    prediction = await ladder.predict()
    assert (prediction.rung, prediction.feature_failure) == (Rung.MODEL, "store_unavailable")


@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        (None, "a precomputed rung but nothing precomputed is declared"),
        (Precomputed(key=("origin", "nobody"), max_age_s=1), "precomputed key 'nobody' must be a required input"),
        (Precomputed(key=("seats",), max_age_s=1), "precomputed key 'seats' must be a required input"),
        (Precomputed(key=(), max_age_s=1), "needs a key"),
        (Precomputed(key=("origin",), max_age_s=0), "a positive max_age_s"),
    ],
)
def test_a_declaration_that_cannot_be_looked_up_is_refused(
    tmp_path: Path, declared: Precomputed | None, fault: str
) -> None:
    check_declaration(nightly(tmp_path))
    with pytest.raises(ConfigurationError, match=fault):
        check_declaration(nightly(tmp_path, precomputed=declared))

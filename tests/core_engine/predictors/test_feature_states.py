"""Five states times four actions: what the model's row holds, what the reply says, and which rung answers."""

from __future__ import annotations

import math
from datetime import datetime

import msgspec
import pytest

from core_engine.contracts import FeatureState, FeatureValue, Prediction, Reason, Rung
from core_engine.predictors.declaration import FeatureUse, OnState
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import (
    INPUTS,
    MEAN_DELAY,
    MODEL_SCORE,
    PRIOR_RATE,
    STUDENT_SCORE,
    delay_predictor,
)

RULES = {FeatureState.MISSING: "on_missing", FeatureState.STALE: "on_stale", FeatureState.NULL: "on_null"}
FOUND = {
    FeatureState.PRESENT: FeatureValue(12.5, FeatureState.PRESENT, 60.0),
    FeatureState.DEFAULT: FeatureValue(3.0, FeatureState.DEFAULT, 60.0),
    FeatureState.NULL: FeatureValue(None, FeatureState.NULL, 60.0),
    FeatureState.MISSING: FeatureValue(None, FeatureState.MISSING),
    FeatureState.STALE: FeatureValue(99.0, FeatureState.STALE, 7200.0),
}
DECLARED_DEFAULT = 7.0


def use_of(state: FeatureState, action: OnState) -> FeatureUse:
    """`action` for `state`, and for every other state the one that would be noticed."""
    other = OnState.DEFAULT if action is OnState.REFUSE else OnState.REFUSE
    rules = {rule: action if named is state else other for named, rule in RULES.items()}
    return FeatureUse(ref=MEAN_DELAY, default=DECLARED_DEFAULT, **rules)


async def asked(ladder: Ladder, state: FeatureState, action: OnState) -> Prediction:
    ladder.features.values[MEAN_DELAY] = FOUND[state]
    ladder.predictor = msgspec.structs.replace(ladder.predictor, features=(use_of(state, action),))
    return await ladder.predict()


@pytest.mark.parametrize("action", OnState)
@pytest.mark.parametrize("state", FeatureState)
async def test_a_state_is_reported_as_found_whatever_is_done_with_it(
    ladder: Ladder, state: FeatureState, action: OnState
) -> None:
    prediction = await asked(ladder, state, action)
    assert prediction.feature_states == {MEAN_DELAY: state}
    assert prediction.feature_ages_s == {MEAN_DELAY: FOUND[state].age_s}
    assert ladder.sample("headrace_feature_values_total", predictor="delay", state=state) == 1


@pytest.mark.parametrize("action", OnState)
@pytest.mark.parametrize("state", [FeatureState.PRESENT, FeatureState.DEFAULT])
async def test_a_value_is_used_whatever_the_rules_say_of_its_absence(
    ladder: Ladder, state: FeatureState, action: OnState
) -> None:
    prediction = await asked(ladder, state, action)
    assert (prediction.rung, prediction.value, prediction.reason) == (Rung.MODEL, MODEL_SCORE, None)
    assert ladder.engine.scored_vector()[2] == FOUND[state].value


@pytest.mark.parametrize("action", [OnState.USE, OnState.DEFAULT])
@pytest.mark.parametrize("state", RULES)
async def test_the_model_sees_what_is_there_or_the_declared_default(
    ladder: Ladder, state: FeatureState, action: OnState
) -> None:
    prediction = await asked(ladder, state, action)
    assert (prediction.rung, prediction.value, prediction.reason) == (Rung.MODEL, MODEL_SCORE, None)
    there = math.nan if FOUND[state].value is None else FOUND[state].value
    seen = DECLARED_DEFAULT if action is OnState.DEFAULT else there
    assert ladder.engine.scored_vector()[2] == pytest.approx(seen, nan_ok=True)


@pytest.mark.parametrize("state", RULES)
async def test_the_next_rung_answers_where_the_model_may_not(ladder: Ladder, state: FeatureState) -> None:
    prediction = await asked(ladder, state, OnState.NEXT_RUNG)
    assert ladder.engine.score_requests == []
    assert (prediction.rung, prediction.value) == (Rung.STUDENT, STUDENT_SCORE)
    assert (prediction.reason, prediction.detail) == (Reason.FEATURE_STATE, f"model: {MEAN_DELAY} is {state}")


@pytest.mark.parametrize("state", RULES)
async def test_nobody_answers_where_the_predictor_refuses(ladder: Ladder, state: FeatureState) -> None:
    prediction = await asked(ladder, state, OnState.REFUSE)
    assert ladder.engine.score_requests == []
    assert (prediction.rung, prediction.value, prediction.scores) == (Rung.NONE, None, {})
    assert (prediction.reason, prediction.detail) == (Reason.FEATURE_STATE, f"model: {MEAN_DELAY} is {state}")


@pytest.mark.parametrize("action", [OnState.NEXT_RUNG, OnState.REFUSE])
async def test_of_several_features_each_one_that_stops_is_named(ladder: Ladder, action: OnState) -> None:
    uses = tuple(
        FeatureUse(ref=f"route.{state}", default=0.0, **dict.fromkeys(RULES.values(), action)) for state in FOUND
    )
    ladder.features.values = {f"route.{state}": value for state, value in FOUND.items()}
    columns = tuple(
        msgspec.structs.replace(ladder.predictor.columns[2], name=state, source=f"route.{state}") for state in FOUND
    )
    several = delay_predictor(
        ladder.folder, features=uses, columns=(ladder.predictor.columns[0], *columns), student=None,
        ladder=(Rung.MODEL, Rung.PRIOR),
    )  # fmt: skip
    prediction = await ladder.predict(predictor=several)
    assert prediction.value == (PRIOR_RATE if action is OnState.NEXT_RUNG else None)
    named = ", ".join(f"route.{state} is {state}" for state in ("null", "missing", "stale"))
    assert prediction.detail == f"model: {named}"


async def test_the_reader_is_given_the_checked_inputs(ladder: Ladder) -> None:
    """Transforms on demand are computed from them: each declared one, as the value that it means."""
    await ladder.predict(inputs=INPUTS | {"price": 5})
    [inputs] = ladder.features.inputs
    assert set(inputs) == {"origin", "dest", "departure", "seats", "price", "is_charter"}
    assert inputs["origin"] == "JFK"
    assert (inputs["seats"], inputs["price"]) == (None, 5.0)
    assert inputs["departure"] == datetime.fromisoformat("2013-11-05T17:30:00-05:00")

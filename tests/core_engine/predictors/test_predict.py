"""The ladder: which rung answers, what it says of the others, and that there always is an answer."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core_engine.contracts import Deadline, FeatureState, FeatureValue, Pool, Prediction, Reason, Rung
from core_engine.costs.facts import CallerFact
from core_engine.errors import (
    ConfigurationError,
    DeadlineExceeded,
    EngineRefused,
    EngineUnavailable,
    HeadraceError,
    InvalidRequest,
    StoreUnavailable,
    UnknownName,
)
from core_engine.predictors.climb import reason_of
from core_engine.predictors.declaration import FeatureUse, Objective, OnState
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import (
    INPUTS,
    MEAN_DELAY,
    MODEL_SCORE,
    PRIOR_RATE,
    STUDENT_SCORE,
    delay_predictor,
    notice_predictor,
)

VALUES = {Rung.MODEL: MODEL_SCORE, Rung.STUDENT: STUDENT_SCORE, Rung.PRIOR: PRIOR_RATE, Rung.NONE: None}


def with_feature(ladder: Ladder, **use: object) -> None:
    """Make the ladder's one feature count as `use` says."""
    feature = FeatureUse(ref=MEAN_DELAY, **use)  # type: ignore[arg-type]
    ladder.predictor = msgspec.structs.replace(ladder.predictor, features=(feature,))


async def test_the_model_answers_with_all_that_it_used(ladder: Ladder) -> None:
    prediction = await ladder.predict()

    assert (prediction.value, prediction.scores) == (MODEL_SCORE, {"late": MODEL_SCORE})
    assert (prediction.rung, prediction.reason, prediction.detail) == (Rung.MODEL, None, None)
    assert not prediction.degraded
    assert prediction.feature_states == {MEAN_DELAY: FeatureState.PRESENT}
    assert prediction.feature_ages_s == {MEAN_DELAY: 60.0}
    assert prediction.usage.batch_size == 4
    assert prediction.usage.feature.bytes == 40
    assert prediction.usage.caller_cpu_s > 0


async def test_the_engine_is_asked_for_this_version_with_the_encoded_row(ladder: Ladder) -> None:
    await ladder.predict()

    (request,) = ladder.engine.score_requests
    assert (request.scorer, request.num_rows, request.pool) == ("delay:1", 1, Pool.INTERACTIVE)
    assert request.attempt_id == "attempt"
    assert ladder.engine.scored_vector() == [0.0, 17.5, 12.5]
    assert ladder.features.keys == [{"route": "JFK-LAX"}]


async def test_a_predictor_for_throughput_goes_to_the_bulk_pool(ladder: Ladder) -> None:
    await ladder.predict(predictor=delay_predictor(ladder.folder, objective=Objective.THROUGHPUT))
    assert ladder.engine.score_requests[0].pool is Pool.BULK


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineUnavailable("it was lost"), Reason.ENGINE_UNAVAILABLE),
        (EngineRefused("its queue is full"), Reason.ENGINE_REFUSED),
        (DeadlineExceeded("too late"), Reason.DEADLINE),
        (UnknownName("no such scorer"), Reason.MODEL_ERROR),
        (HeadraceError("the scorer failed"), Reason.MODEL_ERROR),
    ],
)
async def test_an_engine_that_does_not_answer_is_the_student_and_the_reason(
    ladder: Ladder, error: HeadraceError, reason: Reason
) -> None:
    ladder.engine.error = error
    prediction = await ladder.predict()

    assert (prediction.rung, prediction.value, prediction.reason) == (Rung.STUDENT, STUDENT_SCORE, reason)
    assert prediction.detail == f"model: {error}"
    assert prediction.degraded
    assert reason_of(error) is reason


def test_a_lost_store_is_not_a_lost_engine() -> None:
    assert reason_of(StoreUnavailable("away")) is Reason.STORE_UNAVAILABLE


@pytest.mark.parametrize("scores", [(math.nan,), (math.inf,), (), (0.1, 0.2)])
async def test_a_model_that_returns_no_finite_score_is_a_model_error(ladder: Ladder, scores: tuple[float, ...]) -> None:
    ladder.engine.scores = scores
    prediction = await ladder.predict()
    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, Reason.MODEL_ERROR)


async def test_without_a_student_the_prior_answers(ladder: Ladder) -> None:
    ladder.engine.lose()
    prior_only = delay_predictor(ladder.folder, student=None, ladder=(Rung.MODEL, Rung.PRIOR))
    prediction = await ladder.predict(predictor=prior_only)
    assert (prediction.rung, prediction.value) == (Rung.PRIOR, PRIOR_RATE)


async def test_a_broken_student_is_passed_over_and_named(ladder: Ladder) -> None:
    Path(ladder.predictor.student.artifact.path).write_bytes(b"damaged")  # type: ignore[union-attr]
    ladder.engine.lose()
    prediction = await ladder.predict()

    assert (prediction.rung, prediction.reason) == (Rung.PRIOR, Reason.ENGINE_UNAVAILABLE)
    assert prediction.detail is not None
    assert "student: model file" in prediction.detail


async def test_a_predictor_that_fails_closed_says_none_and_why(ladder: Ladder) -> None:
    ladder.engine.lose()
    prediction = await ladder.predict(predictor=delay_predictor(ladder.folder, fail_open=False))

    assert (prediction.rung, prediction.value, prediction.scores) == (Rung.NONE, None, {})
    assert prediction.reason is Reason.ENGINE_UNAVAILABLE


async def test_the_ladder_is_tried_in_its_declared_order(ladder: Ladder) -> None:
    upside_down = delay_predictor(ladder.folder, ladder=(Rung.PRIOR, Rung.MODEL))
    prediction = await ladder.predict(predictor=upside_down)
    assert (prediction.rung, prediction.reason) == (Rung.PRIOR, None)
    assert ladder.engine.score_requests == []


async def test_the_precomputed_rung_misses_until_predictions_are_published(ladder: Ladder) -> None:
    ladder.engine.lose()
    prediction = await ladder.predict(predictor=delay_predictor(ladder.folder, ladder=(Rung.PRECOMPUTED,)))
    assert (prediction.rung, prediction.reason) == (Rung.NONE, Reason.NO_RUNG)


# -- features


async def test_a_store_that_is_away_is_missing_values_and_no_error(ladder: Ladder) -> None:
    ladder.features.failure = "store_unavailable"
    prediction = await ladder.predict()

    assert (prediction.rung, prediction.reason) == (Rung.MODEL, None)
    assert prediction.feature_states == {MEAN_DELAY: FeatureState.MISSING}


async def test_where_the_model_needs_the_store_its_loss_is_the_reason(ladder: Ladder) -> None:
    ladder.features.failure = "store_unavailable"
    with_feature(ladder, on_missing=OnState.NEXT_RUNG)
    prediction = await ladder.predict()

    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, Reason.FEATURES_UNAVAILABLE)
    assert prediction.detail == f"model: {MEAN_DELAY} is missing (store_unavailable)"


async def test_a_view_that_is_not_declared_here_is_no_5xx(ladder: Ladder) -> None:
    ladder.features.error = ConfigurationError("view 'route' is not declared")
    with_feature(ladder, on_missing=OnState.NEXT_RUNG)
    prediction = await ladder.predict()
    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, Reason.FEATURES_UNAVAILABLE)


async def test_a_stored_value_of_another_type_ends_the_ladder_with_its_reason(ladder: Ladder) -> None:
    ladder.features.values[MEAN_DELAY] = FeatureValue("late", FeatureState.PRESENT, 1.0)
    prediction = await ladder.predict()
    assert (prediction.rung, prediction.reason) == (Rung.NONE, Reason.MODEL_ERROR)


async def test_without_features_no_store_is_asked(ladder: Ladder) -> None:
    columns = tuple(c for c in ladder.predictor.columns if c.source != MEAN_DELAY)
    bare = delay_predictor(ladder.folder, features=(), columns=columns)
    assert (await ladder.predict(predictor=bare)).rung is Rung.MODEL
    assert ladder.features.keys == []


# -- requests that are wrong


async def test_wrong_inputs_are_the_callers_to_correct(ladder: Ladder) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ladder.predict(INPUTS | {"departure": "2013-11-05T17:30:00"})
    assert caught.value.field == "departure"
    assert ladder.facts() == []


async def test_a_predictor_that_writes_text_names_its_route(ladder: Ladder) -> None:
    with pytest.raises(InvalidRequest, match="/v1/chat/completions"):
        await ladder.predict(predictor=notice_predictor())


# -- time


async def test_the_model_may_use_what_remains_less_the_reserve(ladder: Ladder) -> None:
    deadline = Deadline.after(1000.0)
    await ladder.predict(deadline=deadline)

    assert ladder.engine.score_requests[0].deadline.at_s == deadline.at_s - ladder.predictor.reserve_ms / 1e3
    assert ladder.features.deadlines[0].at_s <= deadline.at_s - 900


async def test_nothing_is_reserved_where_nothing_below_may_answer(ladder: Ladder) -> None:
    deadline = Deadline.after(1000.0)
    await ladder.predict(deadline=deadline, predictor=delay_predictor(ladder.folder, fail_open=False))
    assert ladder.engine.score_requests[0].deadline.at_s == deadline.at_s


async def test_a_budget_used_up_by_the_features_skips_the_model_and_says_so(ladder: Ladder) -> None:
    now = [100.0]
    deadline = Deadline(100.050, lambda: now[0])
    read = ladder.features.read

    async def slow(*args: object, **inputs: object) -> object:
        now[0] += 0.046
        return await read(*args, **inputs)  # type: ignore[arg-type]

    ladder.features.read = slow  # type: ignore[method-assign, assignment]
    prediction = await ladder.predict(deadline=deadline, clock=lambda: now[0])

    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, Reason.DEADLINE)
    assert prediction.stages.overran == "features"
    assert prediction.stages.features_ms == pytest.approx(46.0)
    assert ladder.engine.score_requests == []


async def test_a_model_that_is_late_is_named_as_the_stage_that_overran(ladder: Ladder) -> None:
    ladder.engine.error = DeadlineExceeded("no answer within the deadline")
    prediction = await ladder.predict()
    assert prediction.stages.overran == "model"


async def test_an_answer_after_the_deadline_is_given_and_counted_as_late(ladder: Ladder) -> None:
    prediction = await ladder.predict(deadline=Deadline(0.0))

    assert (prediction.rung, prediction.reason) == (Rung.STUDENT, Reason.DEADLINE)
    (fact,) = ladder.facts()
    assert isinstance(fact, CallerFact)
    assert not fact.delivered_in_time


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    budget_s=st.floats(-1, 0.2),
    spent_s=st.floats(0, 0.1),
    reserve_ms=st.floats(0, 300),
    fail_open=st.booleans(),
    error=st.sampled_from([None, EngineUnavailable("lost"), EngineRefused("full"), DeadlineExceeded("late")]),
)
async def test_there_is_always_an_answer_and_no_late_request_reaches_the_engine(
    ladder: Ladder, budget_s: float, spent_s: float, reserve_ms: float, fail_open: bool, error: HeadraceError | None
) -> None:
    now = [50.0]
    ladder.engine.error = error
    ladder.engine.score_requests.clear()
    deadline = Deadline(now[0] + budget_s, lambda: now[0])
    read = type(ladder.features).read

    async def reading(*args: object, **inputs: object) -> object:
        now[0] += spent_s
        return await read(ladder.features, *args, **inputs)  # type: ignore[arg-type]

    ladder.features.read = reading  # type: ignore[method-assign, assignment]
    predictor = delay_predictor(ladder.folder, reserve_ms=reserve_ms, fail_open=fail_open)
    prediction: Prediction = await ladder.predict(deadline=deadline, predictor=predictor, clock=lambda: now[0])

    assert prediction.value == VALUES[prediction.rung]
    assert (prediction.rung is Rung.MODEL) == (prediction.reason is None)
    assert fail_open or prediction.rung in (Rung.MODEL, Rung.NONE)
    assert not fail_open or prediction.rung is not Rung.NONE
    reserve_s = reserve_ms / 1e3 if fail_open else 0.0
    for request in ladder.engine.score_requests:
        assert now[0] < request.deadline.at_s == deadline.at_s - reserve_s


# -- accounts


async def test_one_fact_and_one_count_per_prediction(ladder: Ladder) -> None:
    ladder.engine.lose()
    await ladder.predict()

    (fact,) = ladder.facts()
    assert isinstance(fact, CallerFact)
    assert (fact.attempt_id, fact.delivery_key) == ("attempt", "delivery")
    assert (fact.rung, fact.reason) == (Rung.STUDENT, Reason.ENGINE_UNAVAILABLE)
    assert fact.delivered_in_time
    assert fact.arrived_at.tzinfo is not None
    assert fact.answered_at >= fact.arrived_at
    counted = ladder.sample(
        "headrace_predictions_total", predictor="delay", version="1", rung="student", reason="engine_unavailable"
    )
    assert counted == 1
    assert ladder.sample("headrace_feature_values_total", predictor="delay", state="present") == 1
    assert ladder.sample("headrace_feature_read_bytes_total") == 40
    assert ladder.sample("headrace_prediction_stage_seconds_count", predictor="delay", stage="fallback") == 1


async def test_stages_add_up_to_the_total(ladder: Ladder) -> None:
    stages = (await ladder.predict()).stages
    assert 0 < stages.features_ms + stages.queue_ms + stages.fallback_ms <= stages.total_ms
    assert stages.model_ms == 2.0

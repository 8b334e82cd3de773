"""`POST /v1/predict`: what a caller reads in a reply, and what a wrong request is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core_engine.contracts import FeatureState, FeatureValue
from core_engine.costs.facts import CallerFact
from core_engine.errors import EngineRefused
from tests.core_engine.predictors.doubles import (
    INPUTS,
    MEAN_DELAY,
    MODEL_SCORE,
    PRIOR_RATE,
    STUDENT_SCORE,
    delay_predictor,
)
from tests.online.conftest import DoorUnderTest

ROUTE = "/v1/predict/delay"


async def test_a_prediction_says_what_who_why_and_what_it_cost(door: DoorUnderTest) -> None:
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS})

    assert reply.status_code == 200
    body = reply.json()
    stages, usage, budget = body.pop("stages"), body.pop("usage"), body.pop("budget")
    assert len(body.pop("attempt_id")) == 32
    assert body == {
        "predictor": "delay",
        "version": 1,
        "value": MODEL_SCORE,
        "scores": {"late": MODEL_SCORE},
        "rung": "model",
        "degraded": False,
        "reason": None,
        "detail": None,
        "features": {MEAN_DELAY: {"state": "present", "age_s": 60.0}},
        "stored": None,
    }
    parts = ("auth", "features", "queue", "fallback", "serialise")
    assert 0 < stages["serialise_ms"] < sum(stages[f"{part}_ms"] for part in parts) <= stages["total_ms"]
    assert 0 < budget["model_ms"] < budget["total_ms"] - budget["reserve_ms"] < 10_000
    assert budget["features_ms"] <= 15
    assert usage["batch_size"] == 4
    assert usage["feature"]["reads"] == 1
    assert [part.split(";")[0] for part in reply.headers["server-timing"].split(", ")] == [
        "auth",
        "features",
        "queue",
        "model",
        "fallback",
        "serialise",
        "total",
    ]


@pytest.mark.parametrize("state", FeatureState)
async def test_each_state_of_a_feature_is_in_the_reply_with_its_age(door: DoorUnderTest, state: FeatureState) -> None:
    age_s = None if state is FeatureState.MISSING else 7200.5
    door.features.values[MEAN_DELAY] = FeatureValue(None, state, age_s)
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS})
    assert reply.json()["features"] == {MEAN_DELAY: {"state": state.value, "age_s": age_s}}


async def test_a_value_of_a_feature_is_never_in_a_reply(door: DoorUnderTest) -> None:
    door.features.values[MEAN_DELAY] = FeatureValue(777.125, FeatureState.PRESENT, 1.0)
    assert "777.125" not in (await door.http.post(ROUTE, json={"inputs": INPUTS})).text


async def test_overload_and_loss_are_200_with_the_rung_and_the_reason(door: DoorUnderTest) -> None:
    door.engine.error = EngineRefused("its queue is full")
    door.features.failure = "store_unavailable"
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS})

    assert reply.status_code == 200
    body = reply.json()
    assert (body["rung"], body["value"], body["degraded"]) == ("student", STUDENT_SCORE, True)
    assert (body["reason"], body["detail"]) == ("engine_refused", "model: its queue is full")
    assert body["features"] == {MEAN_DELAY: {"state": "missing", "age_s": None}}


@pytest.mark.parametrize(
    ("headers", "body", "budget_s"),
    [
        ({}, {}, 10.0),  # the predictor's own
        ({"X-Deadline-Ms": "250"}, {}, 0.25),
        ({}, {"budget_ms": 125.5}, 0.1255),
        ({"X-Deadline-Ms": "250"}, {"budget_ms": 100}, 0.1),
        ({"X-Deadline-Ms": "50"}, {"budget_ms": 100}, 0.05),
        ({"X-Deadline-Ms": "3000000"}, {"budget_ms": 2000000}, 10.0),
    ],
)
async def test_the_tightest_budget_counts_from_arrival(
    door: DoorUnderTest, headers: dict[str, str], body: dict[str, Any], budget_s: float
) -> None:
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS} | body, headers=headers)
    allowed_s = reply.json()["budget"]["total_ms"] / 1e3
    assert 0.9 * budget_s < allowed_s + reply.json()["stages"]["auth_ms"] / 1e3 <= budget_s * (1 + 1e-6)
    (fact,) = door.facts()
    assert isinstance(fact, CallerFact)


@pytest.mark.parametrize(("rung", "value"), [("model", MODEL_SCORE), ("student", STUDENT_SCORE), ("prior", PRIOR_RATE)])
async def test_a_rung_that_is_named_answers_alone(door: DoorUnderTest, rung: str, value: float) -> None:
    body = (await door.http.post(ROUTE, json={"inputs": INPUTS, "rungs": [rung]})).json()
    assert (body["rung"], body["value"], body["reason"]) == (rung, value, None)
    assert len(door.engine.score_requests) == (rung == "model")


async def test_a_rung_that_is_named_and_cannot_answer_is_not_replaced(door: DoorUnderTest) -> None:
    door.engine.lose()
    body = (await door.http.post(ROUTE, json={"inputs": INPUTS, "rungs": ["model"]})).json()
    assert (body["rung"], body["value"], body["reason"]) == ("none", None, "engine_unavailable")


async def test_a_budget_that_was_gone_before_the_ladder_names_its_stage(door: DoorUnderTest) -> None:
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS}, headers={"X-Deadline-Ms": "0.001"})
    assert (reply.json()["rung"], reply.json()["stages"]["overran"]) == ("student", "auth")
    assert 'overran;desc="auth"' in reply.headers["server-timing"]


async def test_an_alias_chooses_the_version(door: DoorUnderTest, tmp_path: Any) -> None:
    door.registry.register(delay_predictor(tmp_path, version=2))
    door.registry.set_alias("delay", "shadow", 2)
    await door.services.catalogue.refresh()
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS, "alias": "shadow"})
    assert reply.json()["version"] == 2


async def test_the_delivery_key_is_the_client_s_and_the_attempt_id_ours(door: DoorUnderTest) -> None:
    headers = {"Idempotency-Key": "order-7", "X-Request-Id": "mine"}
    attempts = [(await door.http.post(ROUTE, json={"inputs": INPUTS}, headers=headers)).json() for _ in range(2)]
    facts = door.facts()
    assert [fact.attempt_id for fact in facts] == [attempt["attempt_id"] for attempt in attempts]
    assert len({fact.attempt_id for fact in facts}) == 2
    assert {fact.delivery_key for fact in facts if isinstance(fact, CallerFact)} == {"order-7"}


@pytest.mark.parametrize(
    ("body", "field", "expectation"),
    [
        ({}, "inputs", "Field required"),
        ({"inputs": 5}, "inputs", "dictionary"),
        ({"inputs": INPUTS, "budget_ms": 0}, "budget_ms", "greater than 0"),
        ({"inputs": INPUTS, "budget_ms": "50"}, "budget_ms", "number"),
        ({"inputs": INPUTS, "budget_ms": True}, "budget_ms", "number"),
        ({"inputs": INPUTS, "input": 1}, "input", "alias, budget_ms, inputs"),
        ({"inputs": INPUTS, "rungs": ["engine"]}, "rungs.0", "'model', 'precomputed', 'student' or 'prior'"),
        ({"inputs": INPUTS, "rungs": ["precomputed"]}, "rungs", "some of model, student, prior"),
        ({"inputs": INPUTS, "rungs": "model"}, "rungs", "list"),
        ({"inputs": INPUTS, "alias": ""}, "alias", "at least 1 character"),
        ({"inputs": {**INPUTS, "origin": None}}, "origin", "a value of kind string"),
        ({"inputs": {**INPUTS, "origin": ""}}, "origin", "part of the key of entity route"),
        ({"inputs": {**INPUTS, "seats": 5.0}}, "seats", "an integer"),
        ({"inputs": {**INPUTS, "seats": 901}}, "seats", "at most 900"),
        ({"inputs": {**INPUTS, "departure": "2013-11-05T17:30:00"}}, "departure", "with an offset"),
        ({"inputs": {**INPUTS, "carrier": "B6"}}, "carrier", "origin, dest, departure"),
        ({"inputs": {**INPUTS, "\udc00": 1}}, "\\udc00", "declared inputs"),
    ],
)
async def test_a_wrong_request_is_a_problem_with_field_value_and_expectation(
    door: DoorUnderTest, body: dict[str, Any], field: str, expectation: str
) -> None:
    content = json.dumps(body).encode()
    reply = await door.http.post(ROUTE, content=content, headers={"Content-Type": "application/json"})
    if "\\udc00" in content.decode():  # no JSON text of ours holds half a character
        assert reply.status_code in (400, 422)
        return
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["type"] == "urn:headrace:problem:invalid_request"
    assert (problem["title"], problem["status"], problem["instance"]) == ("Invalid request", 422, ROUTE)
    assert problem["field"] == field
    assert "value" in problem
    assert expectation in problem["expected"]
    assert field in problem["detail"]
    assert door.facts() == []


@pytest.mark.parametrize("given_ms", ["0", "-5", "soon", "nan", "inf", "1e12", ""])
async def test_a_deadline_header_out_of_range_is_refused_by_name(door: DoorUnderTest, given_ms: str) -> None:
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS}, headers={"X-Deadline-Ms": given_ms})
    assert reply.status_code == 422
    assert reply.json()["field"] == "X-Deadline-Ms"


@pytest.mark.parametrize("key", ["", "a b", "x" * 256])
async def test_a_delivery_key_that_cannot_be_one_is_refused_by_name(door: DoorUnderTest, key: str) -> None:
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS}, headers={"Idempotency-Key": key})
    assert reply.status_code == 422
    assert reply.json()["field"] == "Idempotency-Key"


async def test_an_unknown_predictor_is_404_with_the_known_ones(door: DoorUnderTest) -> None:
    reply = await door.http.post("/v1/predict/dealy", json={"inputs": INPUTS})
    assert reply.status_code == 404
    problem = reply.json()
    assert (problem["field"], problem["value"]) == ("predictor", "dealy")
    assert problem["expected"] == "one of: delay, notice"


async def test_a_predictor_that_writes_is_refused_here(door: DoorUnderTest) -> None:
    reply = await door.http.post("/v1/predict/notice", json={"inputs": {}})
    assert reply.status_code == 422
    assert "/v1/chat/completions" in reply.json()["detail"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
bodies = st.one_of(
    st.binary(max_size=64),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"inputs": st.dictionaries(st.sampled_from([*INPUTS, "seats", "price", "is_charter"]), json_values)},
        optional={"budget_ms": json_values, "alias": json_values},
    ).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"inputs": st.just(INPUTS), "budget_ms": json_values}).map(lambda v: json.dumps(v).encode()),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(content=bodies)
async def test_no_body_is_a_5xx(door: DoorUnderTest, content: bytes) -> None:
    reply = await door.http.post(ROUTE, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code in (200, 400, 404, 413, 422)
    if reply.status_code != 200:
        problem = reply.json()
        assert problem["detail"]
        assert "expected" in problem

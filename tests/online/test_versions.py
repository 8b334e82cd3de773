"""Versions in traffic, as a caller of `POST /v1/predict` sees them: who answered, and nothing of a shadow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core_engine.contracts import Path as DoorPath
from core_engine.costs.facts import ComparisonFact
from core_engine.costs.spool import read_spool
from core_engine.predictors.declaration import Objective
from tests.core_engine.predictors.doubles import INPUTS, MODEL_SCORE, delay_predictor, notice_predictor
from tests.online.conftest import DoorUnderTest

ROUTE = "/v1/predict/delay"


@pytest.fixture
async def second(door: DoorUnderTest, tmp_path: Path) -> DoorUnderTest:
    """A door that knows version 2 of `delay`, which no alias points at yet."""
    door.registry.register(delay_predictor(tmp_path, version=2))
    return door


async def point(door: DoorUnderTest, alias: str, percent: float | None = None) -> None:
    door.registry.set_alias("delay", alias, 2, percent=percent)
    await door.services.catalogue.refresh()


async def versions(door: DoorUnderTest, dests: range) -> list[int]:
    """Who answers the routes to so many places."""
    replies = [await door.http.post(ROUTE, json={"inputs": INPUTS | {"dest": f"D{n}"}}) for n in dests]
    return [reply.json()["version"] for reply in replies]


async def test_a_canary_answers_its_entities_always_and_the_reply_names_it(second: DoorUnderTest) -> None:
    await point(second, "canary", 30.0)
    first = await versions(second, range(40))
    assert await versions(second, range(40)) == first
    assert set(first) == {1, 2}
    counts = [
        second.sample("headrace_predictions_total", predictor="delay", version=version, rung="model", reason="")
        for version in ("1", "2")
    ]
    assert counts == [2.0 * first.count(1), 2.0 * first.count(2)]
    await point(second, "canary", 60.0)
    more = await versions(second, range(40))
    assert all(now == 2 for was, now in zip(first, more, strict=True) if was == 2)
    assert more.count(2) > first.count(2)


async def test_a_wrong_request_is_the_same_problem_beside_a_canary(second: DoorUnderTest) -> None:
    before = await second.http.post(ROUTE, json={"inputs": INPUTS | {"dest": 5}})
    await point(second, "canary", 50.0)
    beside = await second.http.post(ROUTE, json={"inputs": INPUTS | {"dest": 5}})
    assert (before.status_code, before.json()) == (beside.status_code, beside.json())
    assert beside.status_code == 422


async def test_a_shadow_scores_after_the_reply_and_is_not_in_it(second: DoorUnderTest) -> None:
    await point(second, "shadow")
    reply = await second.http.post(ROUTE, json={"inputs": INPUTS})
    assert (reply.json()["version"], reply.json()["value"]) == (1, MODEL_SCORE)
    assert [request.scorer for request in second.engine.score_requests] == ["delay:1"]

    working = asyncio.create_task(second.services.shadow.run())
    await asyncio.wait_for(second.services.shadow._waiting.join(), 60)
    working.cancel()
    labels = {"predictor": "delay", "version": "2", "outcome": "compared"}
    assert second.sample("headrace_shadow_requests_total", **labels) == 1
    assert [request.scorer for request in second.engine.score_requests] == ["delay:1", "delay:2"]
    live, shadow = second.facts()
    assert (live.attempt_id, live.path) == (reply.json()["attempt_id"], DoorPath.ONLINE)
    assert (shadow.path, shadow.delivered_in_time) == (DoorPath.SHADOW, False)
    facts = read_spool(second.services.spool.path).facts
    assert [fact.difference for fact in facts if isinstance(fact, ComparisonFact)] == [0.0]


async def test_near_its_limit_a_door_answers_and_scores_no_shadow(second: DoorUnderTest) -> None:
    await point(second, "shadow")
    second.is_near_limit = True
    assert (await second.http.post(ROUTE, json={"inputs": INPUTS})).status_code == 200
    labels = {"predictor": "delay", "version": "2", "outcome": "near_limit"}
    assert second.sample("headrace_shadow_requests_total", **labels) == 1


@pytest.mark.parametrize("objective", Objective)
async def test_the_objective_of_a_predictor_that_writes_decides_its_pool(
    door: DoorUnderTest, objective: Objective
) -> None:
    predictor = notice_predictor(version=9, objective=objective)
    door.registry.register(predictor)
    door.registry.set_alias("notice", "live", 9)
    await door.services.catalogue.refresh()
    assert (await door.chat(model="notice")).status_code == 200
    assert door.engine.generate_requests[0].pool is predictor.pool


async def test_what_the_canary_answered_no_shadow_scores(second: DoorUnderTest, tmp_path: Path) -> None:
    second.registry.register(delay_predictor(tmp_path, version=3))
    second.registry.set_alias("delay", "shadow", 3)
    await point(second, "canary", 100.0)
    assert (await second.http.post(ROUTE, json={"inputs": INPUTS})).json()["version"] == 2
    assert second.services.shadow._waiting.empty()

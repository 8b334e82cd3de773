"""`GET /v1/predictions`: what was published, from which generation, how old; and what else there is to say."""

from __future__ import annotations

import asyncio

from core_engine.contracts import Deadline
from core_engine.errors import DeadlineExceeded, StoreUnavailable
from core_engine.readers import StoredPrediction
from tests.online.conftest import DoorUnderTest

ROUTE = "/v1/predictions/notice"


async def test_a_stored_prediction_comes_with_its_generation_and_age(door: DoorUnderTest) -> None:
    door.predictions.stored["JFK-LAX"] = StoredPrediction("On time. ✈", "night.7", 90.0)
    reply = await door.http.get(f"{ROUTE}/JFK-LAX")
    assert reply.status_code == 200
    assert reply.json() == {
        "predictor": "notice",
        "version": 3,
        "entity": "JFK-LAX",
        "value": "On time. ✈",
        "generation": "night.7",
        "age_s": 90.0,
        "is_fresh": True,
    }
    assert door.predictions.asked == [("notice:3", "JFK-LAX")]


async def test_one_that_is_too_old_is_told_and_named_stale(door: DoorUnderTest) -> None:
    door.predictions.stored["a"] = StoredPrediction(0.5, "g", 1e6)
    reply = await door.http.get("/v1/predictions/delay/a")
    assert (reply.status_code, reply.json()["value"], reply.json()["is_fresh"]) == (200, 0.5, False)


async def test_a_key_with_escapes_arrives_as_it_was_made(door: DoorUnderTest) -> None:
    door.predictions.stored["U%2DA-ü"] = StoredPrediction(0.5, "g", 1.0)
    assert (await door.http.get("/v1/predictions/delay/U%252DA-%C3%BC")).status_code == 200


async def test_an_entity_that_is_not_in_the_generation_is_a_404_problem(door: DoorUnderTest) -> None:
    reply = await door.http.get(f"{ROUTE}/nobody")
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["type"] == "urn:headrace:problem:not_stored"
    assert (problem["field"], problem["value"]) == ("entity", "nobody")


async def test_an_unknown_predictor_is_a_404_that_lists_the_known(door: DoorUnderTest) -> None:
    reply = await door.http.get("/v1/predictions/nobody/a")
    assert reply.status_code == 404
    assert reply.json()["expected"] == "one of: delay, notice"


async def test_a_store_that_is_away_is_a_503_problem(door: DoorUnderTest) -> None:
    door.predictions.error = StoreUnavailable("online store: refused")
    reply = await door.http.get(f"{ROUTE}/a")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["type"] == "urn:headrace:problem:store_unavailable"


async def test_the_caller_says_how_long_it_waits(door: DoorUnderTest) -> None:
    door.predictions.error = DeadlineExceeded("late")
    reply = await door.http.get(f"{ROUTE}/a", headers={"X-Deadline-Ms": "60000"})
    assert reply.status_code == 504
    (deadline,) = door.predictions.deadlines
    assert isinstance(deadline, Deadline)
    assert 1 < deadline.remaining() <= 60
    assert (await door.http.get(f"{ROUTE}/a", headers={"X-Deadline-Ms": "soon"})).status_code == 422


async def test_look_ups_run_side_by_side(door: DoorUnderTest) -> None:
    door.predictions.stored |= {str(at): StoredPrediction(float(at), "g", 1.0) for at in range(20)}
    replies = await asyncio.gather(*(door.http.get(f"/v1/predictions/delay/{at}") for at in range(20)))
    assert [reply.json()["value"] for reply in replies] == [float(at) for at in range(20)]

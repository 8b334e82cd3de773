"""Alive, ready, and what a door stands on."""

from __future__ import annotations

from core_engine.predictors.catalogue import Catalogue
from tests.online.conftest import DoorUnderTest


async def test_alive(door: DoorUnderTest) -> None:
    assert (await door.http.get("/healthz")).json() == {"status": "alive"}


async def test_ready_with_everything_there(door: DoorUnderTest) -> None:
    reply = await door.http.get("/readyz")
    assert reply.status_code == 200
    assert reply.json() == {
        "status": "ready",
        "catalogue": {"loaded": True, "failure": None},
        "engine": {"available": True, "incarnation": "first", "model": "tiny", "dtype": "bfloat16"},
        "store": {"available": True},
        "in_flight": 0,
    }


async def test_a_door_without_engine_and_store_is_ready_and_says_so(door: DoorUnderTest) -> None:
    door.engine.lose()
    door.store_answers = False
    reply = await door.http.get("/readyz")
    assert reply.status_code == 200
    assert reply.json()["engine"] == {"available": False}
    assert reply.json()["store"] == {"available": False}


async def test_not_ready_before_the_catalogue_was_read(door: DoorUnderTest) -> None:
    catalogue: Catalogue = door.services.catalogue
    catalogue.loaded, catalogue.failure = False, "no such table"
    reply = await door.http.get("/readyz")
    assert reply.status_code == 503
    assert (reply.json()["status"], reply.json()["catalogue"]["failure"]) == ("starting", "no such table")


async def test_not_ready_while_draining(door: DoorUnderTest) -> None:
    door.services.state.draining = True
    reply = await door.http.get("/readyz")
    assert reply.status_code == 503
    assert reply.json()["status"] == "draining"

"""Alive, ready, and what a door stands on."""

from __future__ import annotations

from core_engine.predictors.catalogue import Catalogue
from online.metrics import observe_engine
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


async def test_metrics_are_prometheus_text_with_the_engine_s_last_snapshot(door: DoorUnderTest) -> None:
    reply = await door.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = reply.text.splitlines()
    assert "headrace_engine_up 1.0" in lines
    assert "headrace_engine_steps 7.0" in lines
    assert 'headrace_engine_waiting_sequences{pool="interactive"} 2.0' in lines
    assert 'headrace_engine_running_sequences{pool="interactive"} 3.0' in lines
    assert "headrace_engine_free_kv_blocks 11.0" in lines


async def test_a_lost_engine_is_down_and_its_last_values_stay(door: DoorUnderTest) -> None:
    await door.http.get("/metrics")
    door.engine.lose()
    door.engine.snapshot = None
    observe_engine(door.services.metrics, door.engine)
    assert door.sample("headrace_engine_up") == 0
    assert door.sample("headrace_engine_steps") == 7

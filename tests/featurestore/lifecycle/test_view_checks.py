"""What the doctor says of a view: each check on its own, the others going on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from core_engine.settings import RedisSettings
from featurestore.keys import row_key
from featurestore.lifecycle.checks import Check, Health
from featurestore.lifecycle.view_checks import SAMPLE, Patient, view_checks
from featurestore.lifecycle.watermarks import Standing, Watermark
from featurestore.materialize import materialize
from featurestore.online.connection import connect
from featurestore.online.store import OnlineStore
from featurestore.windows.batches import WindowEvent
from featurestore.windows.state import Applied
from tests.featurestore.lifecycle.windowed import TILE_S, counting_view
from tests.featurestore.offline.oracle import Known, columns
from tests.featurestore.rows import HOUR, NOW, make_view, write_source
from tests.featurestore.valkey import Valkey

RETENTION_S = 86_400.0
NEVER = Standing(None, None, None)
FRESH = Standing(Watermark(NOW, "d"), None, None)


@pytest.fixture
def patient(client: Redis, tmp_path: Path) -> Patient:
    """More entities than are sampled, none of them online yet; TTL one hour."""
    history = [Known(f"N{i}", NOW, NOW, i) for i in range(3 * SAMPLE)]
    view = make_view(path=write_source(tmp_path / "history.parquet", columns(history)))
    return Patient(view, client, RETENTION_S)


async def fill(patient: Patient) -> None:
    await materialize(patient.view, OnlineStore(patient.client, [patient.view], RETENTION_S), NOW)


async def examined(patient: Patient, standing: Standing = FRESH) -> dict[str, Check]:
    return {check.name: check for check in await view_checks(patient, standing, lambda: NOW)}


async def test_a_view_that_is_well(patient: Patient) -> None:
    await fill(patient)
    found = await examined(patient)
    assert {name: check.health for name, check in found.items()} == dict.fromkeys(
        ("source", "watermark", "online", "readable", "memory"), Health.OK
    )
    assert found["online"].found == f"{SAMPLE} of {SAMPLE} sampled entities of the source"
    assert found["memory"].found.startswith(f"{3 * SAMPLE} entities, ")
    assert found["memory"].subject == f"{patient.view.name}:1"


async def test_a_view_that_is_not_online_at_all_is_a_problem_and_a_lack_a_warning(patient: Patient) -> None:
    assert (await examined(patient))["online"].health is Health.PROBLEM
    await fill(patient)
    await patient.client.unlink(*(row_key(patient.view, f"N{i}") for i in range(2 * SAMPLE)))
    found = (await examined(patient))["online"]
    assert found.health is Health.WARNING
    assert "materialize" in found.advice
    assert "--full" in found.advice


@pytest.mark.parametrize(
    ("age", "health"),
    [
        (timedelta(minutes=30), Health.OK),
        (timedelta(minutes=31), Health.WARNING),
        (timedelta(minutes=61), Health.PROBLEM),
    ],
)
async def test_a_watermark_is_judged_against_the_ttl(patient: Patient, age: timedelta, health: Health) -> None:
    assert (await examined(patient, Standing(Watermark(NOW - age, "d"), None, None)))["watermark"].health is health


async def test_a_view_without_a_watermark_and_one_being_written_are_told(patient: Patient) -> None:
    assert (await examined(patient, NEVER))["watermark"].health is Health.WARNING
    assert "written by me" in (await examined(patient, replace(FRESH, holder="me")))["watermark"].found


async def test_rows_that_cannot_be_read_are_a_problem(patient: Patient) -> None:
    await fill(patient)
    for i in range(2 * SAMPLE):
        await patient.client.hset(row_key(patient.view, f"N{i}"), "p", b"\xffwhat")
    found = (await examined(patient))["readable"]
    assert found.health is Health.PROBLEM
    assert found.found.endswith(", such as 'N0'")


async def test_columns_too_many_are_a_warning_and_a_wrong_one_a_problem(patient: Patient, tmp_path: Path) -> None:
    usual = {"entity_key": ["N1"], "event_time": [NOW], "created_time": [NOW]}
    write_source(Path(patient.view.source.path), {**usual, "delay": [1], "gate": ["A"]})
    assert (await examined(patient))["extra columns"].found == "gate"
    write_source(Path(patient.view.source.path), {**usual, "delay": ["late"]})
    found = await examined(patient)
    assert found["source"].health is Health.PROBLEM
    assert "delay" in found["source"].found


async def test_a_source_that_is_gone_leaves_the_checks_of_what_is_online(patient: Patient) -> None:
    await fill(patient)
    Path(patient.view.source.path).unlink()
    found = await examined(patient)
    assert (found["source"].health, "online" in found) == (Health.PROBLEM, False)
    assert found["memory"].found.startswith(f"{3 * SAMPLE} entities")


async def test_a_source_whose_rows_are_all_too_old_is_told_but_for_a_shift(patient: Patient) -> None:
    later = NOW + timedelta(days=700)
    found = {check.name: check for check in await view_checks(patient, FRESH, lambda: later)}
    assert found["online"].health is Health.WARNING
    assert "young enough" in found["online"].found
    shifted = replace(patient, shift=timedelta(days=700) - HOUR)
    found = {check.name: check for check in await view_checks(shifted, FRESH, lambda: later)}
    assert found["online"].health is Health.PROBLEM, "its rows should be there, and are not"


async def test_a_store_that_is_away_leaves_the_checks_of_the_source(patient: Patient, own_server: Valkey) -> None:
    own_server.kill()
    away = connect(RedisSettings(url=own_server.url))
    found = await examined(replace(patient, client=away))
    assert found["source"].health is Health.OK
    assert found["online"].health is found["memory"].health is Health.PROBLEM
    await away.aclose()


async def test_late_events_of_a_window_are_counted_and_the_last_one_is_named(client: Redis, tmp_path: Path) -> None:
    view = counting_view(tmp_path, [NOW])
    patient = Patient(view, client, RETENTION_S)
    assert (await examined(patient))["late events"].found == "none"
    windows = OnlineStore(client, [view], RETENTION_S).windows
    instants = [NOW, NOW - 4 * timedelta(seconds=TILE_S)]
    events = [WindowEvent(view.name, "JFK", instant, (), "t/0", i) for i, instant in enumerate(instants)]
    assert Applied.LATE in await windows.apply(events)
    found = (await examined(patient))["late events"]
    assert found.health is Health.WARNING
    assert found.found == f"1 kept aside; the last of 'JFK' at {instants[1]:%Y-%m-%d %H:%M:%S} UTC"

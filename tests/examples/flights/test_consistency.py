"""Real flights, asked about at their own prediction instants: what was served is what history says, to the bit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from redis.asyncio import Redis

from core_engine.contracts import Deadline
from core_engine.metrics import Metrics
from core_engine.settings import RedisSettings
from examples.flights.clock import shifted_clock
from examples.flights.data import FlightData
from examples.flights.features import DEPARTURES, STREAMED
from examples.flights.training import AHEAD, ENTITY_COLUMNS, REFS
from featurestore.consistency.capture import Capture
from featurestore.consistency.comparison import Outcome
from featurestore.consistency.findings import Findings
from featurestore.consistency.log_files import Bounds, LogFiles, read_log
from featurestore.consistency.recompute import recompute
from featurestore.consistency.sampled_reader import SampledReader
from featurestore.consistency.served_log import ServedLog
from featurestore.definitions import FeatureView
from featurestore.instants import to_us
from featurestore.materialize import materialize
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.examples.flights.test_windows import departures, events
from tests.featurestore.conftest import redis_url

__all__ = ["redis_url"]

DAY = timedelta(days=1)
TUESDAY = datetime(2013, 11, 12, tzinfo=UTC)
NUM_INSTANTS = 20
RETENTION_S = 60 * 86_400.0  # the server expires by its own clock, which is days away from the example's


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(RedisSettings(url=redis_url))
    yield client
    await client.aclose()


@pytest.fixture
def own_views(views: tuple[FeatureView, ...]) -> list[FeatureView]:
    """The example's own, as versions that no other test has written to the server."""
    return [msgspec.structs.replace(view, version=time.time_ns()) for view in views]


def busiest_instants(data: FlightData) -> dict[datetime, list[dict[str, Any]]]:
    """The flights of a Tuesday by prediction instant: the instants with most of them, in order of time."""
    flights = data.flights.append_column("as_of", AHEAD.as_of(data.flights))
    first, last = (pa.scalar(at, pa.timestamp("us", tz="UTC")) for at in (TUESDAY, TUESDAY + DAY))
    of_day = flights.filter(pc.and_(pc.greater_equal(flights["as_of"], first), pc.less(flights["as_of"], last)))
    by_instant: dict[datetime, list[dict[str, Any]]] = {}
    for flight in of_day.select(["as_of", *ENTITY_COLUMNS.values()]).to_pylist():
        by_instant.setdefault(flight["as_of"], []).append(flight)
    busiest = sorted(by_instant, key=lambda at: len(by_instant[at]))[-NUM_INSTANTS:]
    return {at: by_instant[at] for at in sorted(busiest)}


async def serve(
    client: Redis,
    views: list[FeatureView],
    data: FlightData,
    shift: timedelta,
    folder: Path,
    *,
    is_materialised_again: bool,
) -> int:
    """Ask about every flight at its instant on the shifted clock; the window is seeded once, then fed with events."""
    now = TUESDAY
    log = ServedLog(LogFiles(folder, "door", Bounds(1 << 20, 1 << 26, 9 * DAY)), Metrics(), max_queued=10_000)
    store = OnlineStore(client, views, RETENTION_S)
    online = OnlineFeatureReader(store, views, clock=lambda: now + shift)
    reader = SampledReader(online, Capture(views), Metrics(), log, rate=1.0)
    streamed = next(view for view in views if view.name == STREAMED)
    served = offset = 0
    for at, flights in busiest_instants(data).items():
        if not served:
            await materialize(streamed, store, at + shift, shift=shift)
        else:
            offset += await feed(store, streamed, data, (now, at), shift, offset)
        if not served or is_materialised_again:
            for view in views:
                if view is not streamed:
                    await materialize(view, store, at + shift, shift=shift)
        now = at
        for flight in flights:
            await reader.read(REFS, {e: flight[column] for e, column in ENTITY_COLUMNS.items()}, Deadline.never())
            served += 1
    log.close()
    assert offset > 500
    return served


async def feed(
    store: OnlineStore,
    streamed: FeatureView,
    data: FlightData,
    between: tuple[datetime, datetime],
    shift: timedelta,
    first_offset: int,
) -> int:
    """What departed between two instants, as the stream door applies it."""
    rows = [row | {"departure": row["departure"] + shift} for row in departures(data, *between)]
    plan = next(plan for plan in store.windows.plans(DEPARTURES) if plan.view.name == streamed.name)
    await store.windows.apply(events(plan, rows, first_offset))
    await store.windows.advance(streamed.name, {f"{DEPARTURES}/0": between[1] + shift})
    return len(rows)


def found(folder: Path, views: list[FeatureView], shift: timedelta) -> Findings:
    always = (0, to_us(datetime(2100, 1, 1, tzinfo=UTC), "end"))
    return recompute(read_log(folder, *always, []), views, shift=shift)


def counts(findings: Findings) -> Mapping[str, Mapping[Outcome, int]]:
    return {f"{day.view}.{day.feature}": day.outcomes for day in findings.days}


async def test_hundreds_of_flights_were_served_what_history_says(
    client: Redis, data: FlightData, own_views: list[FeatureView], tmp_path: Path
) -> None:
    """The daily and the weather views, and the window that goes on by events; on a clock shifted to this week."""
    shift = shifted_clock(datetime.now(UTC)).shift
    served = await serve(client, own_views, data, shift, tmp_path, is_materialised_again=True)
    findings = found(tmp_path, own_views, shift)
    assert served > 200
    assert (findings.rows, findings.failures) == (served, {})
    assert counts(findings) == {ref: {Outcome.MATCH: served} for ref in REFS}
    assert {day.day for day in findings.days} == {(TUESDAY + shift).date()}


async def test_views_that_nobody_materialised_again_are_told_from_the_window_that_went_on(
    client: Redis, data: FlightData, own_views: list[FeatureView], tmp_path: Path
) -> None:
    shift = shifted_clock(datetime.now(UTC)).shift
    served = await serve(client, own_views, data, shift, tmp_path, is_materialised_again=False)
    differing = {ref for ref, by in counts(found(tmp_path, own_views, shift)).items() if by != {Outcome.MATCH: served}}
    assert "weather_hourly.temp" in differing
    assert not {ref for ref in differing if ref.startswith(STREAMED)}

"""One window, two ways: the stream's tiles and the batch view say the same at every tick, to the last bit."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureState
from core_engine.settings import RedisSettings
from examples.flights.data import FlightData
from examples.flights.data import connect as flights_db
from examples.flights.features import DEPARTURES, STREAMED
from featurestore.definitions import FeatureView, ParquetSource
from featurestore.materialize import materialize
from featurestore.offline.source import read_source
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from featurestore.windows.batches import WindowEvent
from featurestore.windows.history import backfill_window
from featurestore.windows.plan import WindowPlan
from featurestore.windows.state import Applied
from tests.featurestore.conftest import redis_url

__all__ = ["redis_url"]

FIRST, LAST = datetime(2013, 11, 12, tzinfo=UTC), datetime(2013, 11, 14, tzinfo=UTC)
QUARTER = timedelta(minutes=15)
AIRPORTS = ("EWR", "JFK", "LGA")
REFS = [f"{STREAMED}.{name}" for name in ("mean_delay", "late_share", "flights")]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(RedisSettings(url=redis_url))
    yield client
    await client.aclose()


@pytest.fixture
def streamed(views: tuple[FeatureView, ...]) -> FeatureView:
    """The example's own, as a version that no other test has written to the server."""
    view = next(view for view in views if view.name == STREAMED)
    return msgspec.structs.replace(view, version=time.time_ns())


def departures(data: FlightData, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """Departures in (start, end], in the order in which they happened."""
    table = data.flights.select(["origin", "departure", "departure_delay"])
    left, right = (pa.scalar(at, pa.timestamp("us", tz="UTC")) for at in (start, end))
    happened = pc.and_(pc.greater(table["departure"], left), pc.less_equal(table["departure"], right))
    rows: list[dict[str, Any]] = table.filter(happened).sort_by("departure").to_pylist()
    return rows


def events(plan: WindowPlan, rows: list[dict[str, Any]], first_offset: int = 0) -> list[WindowEvent]:
    return [
        WindowEvent(
            plan.view.name, plan.key_of(row), row["departure"], plan.amounts(row), f"{DEPARTURES}/0", first_offset + i
        )
        for i, row in enumerate(rows)
    ]


Values = dict[str, list[tuple[Any, str]]]  # by airport, value and state of each of `REFS`


def batch_values(streamed: FeatureView, *instants: datetime) -> list[Values]:
    """What the offline store says at each instant."""
    at = pa.array([at for at in instants for _ in AIRPORTS], pa.timestamp("us", tz="UTC"))
    spine = pa.table({"airport": list(AIRPORTS) * len(instants), "at": at})
    joined = OfflineStore([streamed]).as_of_join(spine, REFS, {"airport": "airport"}, "at")
    columns = [list(zip(joined[r].to_pylist(), joined[r + STATE_SUFFIX].to_pylist(), strict=True)) for r in REFS]
    rows = list(zip(*columns, strict=True))
    return [{airport: list(rows[3 * i + j]) for j, airport in enumerate(AIRPORTS)} for i, _ in enumerate(instants)]


async def online_values(store: OnlineStore, streamed: FeatureView, at: datetime) -> Values:
    reader = OnlineFeatureReader(store, [streamed], clock=lambda: at)
    found = {}
    for airport in AIRPORTS:
        values = (await reader.read(REFS, {"airport": airport}, Deadline.never())).values
        found[airport] = [(values[ref].value, str(values[ref].state)) for ref in REFS]
    return found


async def test_streamed_and_batch_agree_at_every_tick_of_two_days(
    client: Redis, data: FlightData, streamed: FeatureView
) -> None:
    """Nights included, when nothing departs: 192 ticks, three airports, three features."""
    store, plan = OnlineStore(client, [streamed], 86_400.0), WindowPlan(streamed)
    await materialize(streamed, store, FIRST)
    at, offset, seen = FIRST, 0, {}
    while at < LAST:
        rows = departures(data, at, at + QUARTER)
        outcomes = await store.windows.apply(events(plan, rows, offset))
        assert set(outcomes) <= {Applied.APPLIED}
        at, offset = at + QUARTER, offset + len(rows)
        await store.windows.advance(streamed.name, {f"{DEPARTURES}/0": at})
        for instant in (at, at + timedelta(minutes=14)):
            seen[instant] = await online_values(store, streamed, instant)
    assert list(seen.values()) == batch_values(streamed, *seen)
    assert offset > 1_500
    assert len(seen) == 384


async def test_a_replay_of_days_within_a_moment_ends_at_the_same_value(
    client: Redis, data: FlightData, streamed: FeatureView
) -> None:
    """All at once and twice, history loaded in the middle: what history covers is told so, nothing counts twice."""
    store, plan = OnlineStore(client, [streamed], 86_400.0), WindowPlan(streamed)
    middle = LAST - timedelta(minutes=50)
    await materialize(streamed, store, middle)
    before = await online_values(store, streamed, LAST)
    replay = events(plan, departures(data, FIRST, LAST))
    first, second = await store.windows.apply(replay), await store.windows.apply(replay)
    await store.windows.advance(streamed.name, {f"{DEPARTURES}/0": LAST})
    assert {*first} == {Applied.SEEDED, Applied.APPLIED}
    assert {*second} == {Applied.SEEDED, Applied.DUPLICATE}
    after = await online_values(store, streamed, LAST)
    assert [after] == batch_values(streamed, LAST)
    assert after != before


async def test_history_alone_is_the_batch_view_until_it_is_stale(client: Redis, streamed: FeatureView) -> None:
    store = OnlineStore(client, [streamed], 86_400.0)
    now = LAST + timedelta(hours=15, minutes=7)
    await materialize(streamed, store, now)
    assert [await online_values(store, streamed, now)] == batch_values(streamed, now)
    later = await online_values(store, streamed, now + timedelta(hours=1))
    assert {state for values in later.values() for _, state in values} == {FeatureState.STALE}


INSTANTS, SPREAD = 1_000, (datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 12, 31, tzinfo=UTC))


def independent_values(data: FlightData, instants: list[datetime]) -> list[Values]:
    """Straight from the flights, without tiles: what left in the two hours before the last full quarter of an hour."""
    asked = pa.table({"i": range(len(instants)), "instant": pa.array(instants, pa.timestamp("us", tz="UTC"))})
    with flights_db() as db:
        db.register("flights", data.flights)
        db.register("asked", asked)
        rows = db.sql("""
            SELECT i, airport, avg(departure_delay), avg((departure_delay >= 15)::INT), count(origin)
            FROM (SELECT i, airport, time_bucket(INTERVAL '15 minutes', instant) AS tick
                  FROM asked, unnest(['EWR', 'JFK', 'LGA']) AS airports(airport))
            LEFT JOIN flights ON origin = airport AND departure <= tick AND departure > tick - INTERVAL '2 hours'
            GROUP BY i, airport ORDER BY i, airport
        """).fetchall()
    found: list[Values] = [{} for _ in instants]
    for i, airport, mean, share, count in rows:
        state = str(FeatureState.NULL if mean is None else FeatureState.PRESENT)
        found[i][airport] = [(mean, state), (share, state), (count, str(FeatureState.PRESENT))]
    return found


@pytest.mark.slow
async def test_the_whole_year_streamed_is_an_independent_query_at_a_thousand_random_instants(
    client: Redis, data: FlightData, streamed: FeatureView
) -> None:
    """Every departure of 2013, in the order in which they happened, up to each instant and then on."""
    rng, (first, last) = random.Random(2013), SPREAD
    instants = sorted(first + (last - first) * rng.random() for _ in range(INSTANTS))
    store, plan = OnlineStore(client, [streamed], 86_400.0), WindowPlan(streamed)
    rows = departures(data, datetime(2012, 1, 1, tzinfo=UTC), datetime(2015, 1, 1, tzinfo=UTC))
    offset, seen = 0, []
    for instant in instants:
        upto = bisect_right(rows, instant, lo=offset, key=lambda row: row["departure"])
        outcomes = await store.windows.apply(events(plan, rows[offset:upto], offset))
        assert set(outcomes) <= {Applied.APPLIED}
        offset = upto
        await store.windows.advance(streamed.name, {f"{DEPARTURES}/0": instant})
        seen.append(await online_values(store, streamed, instant))
    assert offset > 300_000
    assert seen == independent_values(data, instants), "to the last bit: delays are whole minutes"


def test_a_backfill_from_the_departures_is_the_history_that_the_example_computes(
    tmp_path: Path, data: FlightData, streamed: FeatureView
) -> None:
    """The example's own query and the backfill, tick by tick over the year."""
    left = data.flights.filter(pc.is_valid(data.flights["departure"])).select(
        ["origin", "departure", "departure_delay"]
    )
    pq.write_table(left, tmp_path / "events.parquet")
    source = ParquetSource(
        path=str(tmp_path / "events.parquet"), event_time_column="departure", created_time_column="departure"
    )
    assert streamed.window is not None
    tiles = ParquetSource(path=str(tmp_path / "tiles.parquet"))
    window = msgspec.structs.replace(streamed.window, events=source, tiles=tiles)
    view = msgspec.structs.replace(streamed, window=window, source=ParquetSource(path=str(tmp_path / "rows.parquet")))
    assert backfill_window(view).events == len(left)
    own, theirs = rows_by_tick(view), rows_by_tick(streamed)
    assert own.items() <= theirs.items()
    assert {values for tick, values in theirs.items() if tick not in own} == {(None, None, 0)}, "none but empty ones"
    assert len(own) > 90_000


def rows_by_tick(view: FeatureView) -> dict[tuple[str, int], tuple[Any, ...]]:
    source = read_source(view, [field.name for field in view.schema])
    places = zip(source.keys.to_pylist(), source.event_us.to_pylist(), strict=True)
    values = zip(*(source.columns[field.name].to_pylist() for field in view.schema), strict=True)
    return dict(zip(places, values, strict=True))

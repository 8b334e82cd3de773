"""Windows in a real Valkey against the definition by brute force: every order, repetition and delay of events."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureState, ReadCost
from core_engine.errors import ConfigurationError, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureView
from featurestore.keys import applied_key, window_key
from featurestore.materialize import materialize
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from featurestore.windows.plan import StoredWindow, WindowPlan, WindowRow
from featurestore.windows.state import Applied
from featurestore.windows.store import WindowStore
from tests.featurestore.rows import PROPERTY, make_view, row, write_source
from tests.featurestore.valkey import Valkey
from tests.featurestore.windows.oracle import (
    GRACE_S,
    NUM_TILES,
    TILE_S,
    Departure,
    Oracle,
    at,
    seconds_of,
    values_of,
    window_view,
)

DAY_S = 86_400.0
NEVER = Deadline.never()
A, D, L, S, E = Applied.APPLIED, Applied.DUPLICATE, Applied.LATE, Applied.SEEDED, Applied.EXPIRED


class Kept:
    """One windowed view in a store, and what can be read of one of its entities."""

    def __init__(self, client: Redis, view: FeatureView) -> None:
        self.view = view
        self.store = OnlineStore(client, [view], DAY_S)
        self.windows = self.store.windows
        self.plan = WindowPlan(view)

    async def apply(self, *events: Departure) -> list[Applied]:
        return await self.windows.apply([event.to(self.plan) for event in events])

    async def stored(self, key: str = "JFK") -> StoredWindow | None:
        [found] = (await self.store.fetch([(self.view, key)])).rows
        assert found is None or isinstance(found, StoredWindow)
        return found

    async def row(self, now_s: float, key: str = "JFK") -> WindowRow | None:
        stored = await self.stored(key)
        return None if stored is None else self.plan.row_at(stored, round(at(now_s).timestamp() * 1e6))

    async def value(self, now_s: float, key: str = "JFK") -> tuple[float, list[float | None]] | None:
        found = await self.row(now_s, key)
        return None if found is None else (seconds_of(found.event_us), found.values)


@pytest.fixture
def kept(client: Redis) -> Kept:
    return Kept(client, window_view())


# whole and split seconds around ticks, so that both ends of a tile are met often
SECONDS = st.integers(0, 240).map(lambda n: n / 2)
EVENTS = st.lists(
    st.builds(
        Departure,
        seconds=SECONDS,
        delay=st.integers(-30, 300),
        offset=st.integers(0, 30),
        source=st.sampled_from(["departures/0", "departures/1"]),
    ),
    max_size=40,
)


def distinct(events: list[Departure]) -> list[Departure]:
    """One event per coordinates, as a log has it; repetitions of the same stay."""
    log: dict[tuple[str, int], Departure] = {}
    return [log.setdefault(event.coordinates, event) for event in events]


@PROPERTY
@given(events=EVENTS.map(distinct), chunks=st.integers(1, 7), now_s=SECONDS, complete_s=SECONDS)
async def test_any_order_repetition_and_delay_is_the_definition(
    redis_url: str, events: list[Departure], chunks: int, now_s: float, complete_s: float
) -> None:
    client = connect(RedisSettings(url=redis_url))
    try:
        kept, oracle = Kept(client, window_view()), Oracle()
        outcomes = []
        for start in range(0, len(events), chunks):
            outcomes += await kept.apply(*events[start : start + chunks])
        assert outcomes == [oracle.apply(event) for event in events]
        await kept.windows.advance(kept.view.name, {"departures/0": at(complete_s)})
        found = await kept.value(now_s)
        if not any(outcome is A for outcome in outcomes):
            assert found is None
            return
        tick, values = oracle.value(now_s, complete_s)
        assert oracle.newest_s is not None
        if tick - (NUM_TILES - 1) * TILE_S <= oracle.newest_s - oracle.kept_s:
            values = [None] * 4  # older than what is kept
        assert found == (tick, values)
    finally:
        await client.aclose()


async def test_a_tile_holds_its_end_and_not_its_beginning(kept: Kept) -> None:
    await kept.apply(Departure(10, 1, 0), Departure(10.5, 2, 1), Departure(20, 4, 2), Departure(20.5, 8, 3))
    await kept.windows.advance(kept.view.name, {"departures/0": at(60)})
    totals = {now_s: (await kept.value(now_s) or (0, [None] * 4))[1][3] for now_s in (9.5, 10, 20, 30, 40, 50, 60)}
    assert totals == {9.5: 0.0, 10: 1.0, 20: 7.0, 30: 15.0, 40: 14.0, 50: 8.0, 60: 0.0}


async def test_the_open_tile_is_not_served_and_the_window_follows_the_stream_not_the_clock(kept: Kept) -> None:
    await kept.apply(Departure(5, 30, 0))
    await kept.windows.advance(kept.view.name, {"departures/0": at(5)})
    assert await kept.value(9) == (0, [None, None, 0, 0.0]), "the tile is open"
    assert await kept.value(25) == (0, [None, None, 0, 0.0]), "the stream has not come further, whatever the clock says"
    await kept.windows.advance(kept.view.name, {"departures/0": at(25)})
    assert await kept.value(25) == (20, [30.0, 1.0, 1, 30.0])


async def test_every_partition_must_have_come_as_far(kept: Kept) -> None:
    await kept.apply(Departure(5, 30, 0))
    await kept.windows.advance(kept.view.name, {"departures/0": at(40), "departures/1": at(12)})
    assert (await kept.value(40) or (None,))[0] == 10
    await kept.windows.advance(kept.view.name, {"departures/1": at(39)})
    assert (await kept.value(40) or (None,))[0] == 30
    await kept.windows.advance(kept.view.name, {"departures/1": at(3)})
    assert (await kept.value(40) or (None,))[0] == 30, "progress never goes back"


async def test_redelivery_in_parallel_counts_once(kept: Kept) -> None:
    """Twenty appliers at once, each with the same hundred events in its own order."""
    events = [Departure(i % 20 + 1, i, i) for i in range(100)]
    rounds = await asyncio.gather(*(kept.apply(*events[k:], *events[:k]) for k in range(0, 100, 5)))
    assert sum(outcome is A for outcomes in rounds for outcome in outcomes) == 100
    assert {outcome for outcomes in rounds for outcome in outcomes} == {A, D}
    await kept.windows.advance(kept.view.name, {"departures/0": at(20)})
    assert await kept.value(20) == (20, values_of(events))


async def test_entities_and_views_are_apart(client: Redis, kept: Kept) -> None:
    other = Kept(client, window_view())
    await kept.apply(Departure(1, 5, 0), Departure(1, 7, 1, origin="LGA"))
    assert await other.apply(Departure(1, 9, 0)) == [A], "the same coordinates in another view"
    for store in (kept, other):
        await store.windows.advance(store.view.name, {"departures/0": at(10)})
    totals = [(await kept.value(10, "JFK")), (await kept.value(10, "LGA")), (await other.value(10, "JFK"))]
    assert [found[1][3] for found in totals if found] == [5.0, 7.0, 9.0]


async def test_late_is_judged_by_the_events_own_partition(kept: Kept) -> None:
    """A replay brings one partition after the other: the second one is not late because of the first."""
    assert await kept.apply(Departure(60, 1, 0, "departures/0"), Departure(20, 1, 0, "departures/1")) == [A, A]
    assert await kept.apply(Departure(60, 1, 1, "departures/1"), Departure(39, 1, 2, "departures/1")) == [A, A]
    assert await kept.apply(Departure(30, 1, 3, "departures/1")) == [L]
    assert TILE_S * 3 + GRACE_S < 60


async def test_what_no_reader_looks_at_is_dropped(client: Redis, kept: Kept) -> None:
    for i in range(200):
        await kept.apply(Departure(i * 10, 1, i))
    names = [bytes(name) async for name, _ in client.hscan_iter(window_key(kept.view, "JFK"))]
    tiles = {int(name[2:]) for name in names if name.startswith(b"t:")}
    assert len(tiles) == kept.plan.kept_tiles
    coordinates = [key async for key in client.scan_iter(f"{applied_key(kept.view, 'JFK')}:*")]
    assert len(coordinates) == kept.plan.kept_tiles
    assert await kept.apply(Departure(0, 1, 0)) == [E], "delivered again after its tile has gone"


async def test_sums_are_exact_where_doubles_would_not_be(kept: Kept) -> None:
    delays = [0.1, 0.2, 0.3, 1e9, -1e9, 0.000001]
    events = [Departure(1, delay, i) for i, delay in enumerate(delays)]
    await kept.apply(*events)
    await kept.windows.advance(kept.view.name, {"departures/0": at(10)})
    found = await kept.value(10)
    assert found is not None
    assert found[1][3] == 0.600001
    assert math.fsum(delays) == pytest.approx(0.600001)


def history(folder: Path, rows: list[tuple[str, float, float, int, float, float]]) -> FeatureView:
    """A view whose tiles in history are `rows`: key, end and created (seconds), events, sum, late."""
    columns = {
        "entity_key": [r[0] for r in rows],
        "event_time": [at(r[1]) for r in rows],
        "created_time": [at(r[2]) for r in rows],
        "events": pa.array([r[3] for r in rows], pa.int64()),
        "delay": pa.array([r[4] for r in rows], pa.float64()),
        "delay>=15": pa.array([r[5] for r in rows], pa.float64()),
    }
    return window_view(write_source(folder / "tiles.parquet", columns))


async def test_a_seed_is_continued_by_the_stream_and_counts_nothing_twice(client: Redis, tmp_path: Path) -> None:
    view = history(
        tmp_path, [("JFK", 10, 10, 2, 30.0, 1.0), ("JFK", 20, 20, 1, 5.0, 0.0), ("JFK", 30, 30, 9, 9.0, 9.0)]
    )
    kept = Kept(client, view)
    result = await materialize(view, kept.store, at(25))
    assert (result.entities, result.written, result.kept) == (1, 1, 0)
    assert await kept.value(25) == (20, [35 / 3, 1 / 3, 3, 35.0])
    assert await kept.apply(Departure(15, 99, 0), Departure(20, 99, 1), Departure(21, 25, 2)) == [S, S, A]
    await kept.windows.advance(view.name, {"departures/0": at(30)})
    assert await kept.value(30) == (30, [60 / 4, 2 / 4, 4, 60.0]), "the tile that history has not seen is the stream's"
    again = await materialize(view, kept.store, at(25))
    assert (again.written, again.kept) == (0, 1)
    assert (await materialize(view, kept.store, at(12))).kept == 1, "a seed does not go back"
    assert await kept.value(30) == (30, [60 / 4, 2 / 4, 4, 60.0])


async def test_a_later_seed_replaces_what_the_stream_said_of_its_tiles(client: Redis, tmp_path: Path) -> None:
    kept = Kept(client, history(tmp_path, [("JFK", 10, 10, 2, 30.0, 1.0), ("LGA", 10, 10, 1, 1.0, 0.0)]))
    await kept.apply(Departure(5, 7, 0), Departure(15, 8, 1))
    await materialize(kept.view, kept.store, at(10))
    await kept.windows.advance(kept.view.name, {"departures/0": at(20)})
    assert await kept.value(20) == (20, [38 / 3, 1 / 3, 3, 38.0])
    assert await kept.value(20, "LGA") == (20, [1.0, 0.0, 1, 1.0])


async def test_only_what_was_known_is_seeded(client: Redis, tmp_path: Path) -> None:
    """A tile corrected later, a tile created later, an entity that has long been silent."""
    rows = [
        ("JFK", 10, 10, 1, 1.0, 0.0),
        ("JFK", 10, 18, 2, 4.0, 0.0),
        ("JFK", 10, 99, 50, 99.0, 0.0),
        ("JFK", 20, 31, 7, 7.0, 0.0),
        ("OLD", -9000, -9000, 1, 1.0, 0.0),
    ]
    kept = Kept(client, history(tmp_path, [*rows, ("NEW", 50, 50, 1, 1.0, 0.0)]))
    assert (await materialize(kept.view, kept.store, at(30))).entities == 2
    assert await kept.value(30) == (30, [2.0, 0.0, 2, 4.0])
    assert await kept.value(30, "OLD") == (30, [None, None, 0, 0.0]), "watched, and empty"
    assert await kept.value(30, "NEW") is None


async def test_a_shifted_seed_is_the_same_by_the_shift(client: Redis, tmp_path: Path) -> None:
    kept = Kept(client, history(tmp_path, [("JFK", 10, 10, 2, 30.0, 1.0)]))
    week = timedelta(days=7)
    await materialize(kept.view, kept.store, at(10) + week, shift=week)
    assert await kept.value(10 + week.total_seconds()) == (10 + week.total_seconds(), [15.0, 0.5, 2, 30.0])


async def test_a_history_of_tiles_that_does_not_fit_is_refused(client: Redis, tmp_path: Path) -> None:
    off_tick = Kept(client, history(tmp_path, [("JFK", 10.5, 10.5, 2, 30.0, 1.0)]))
    with pytest.raises(ConfigurationError, match="does not end on a tick"):
        await materialize(off_tick.view, off_tick.store, at(20))
    path = write_source(
        tmp_path / "lacks.parquet", {"entity_key": ["a"], "event_time": [at(10)], "created_time": [at(10)]}
    )
    lacking = Kept(client, window_view(path))
    with pytest.raises(ConfigurationError, match="lacks column 'events'"):
        await materialize(lacking.view, lacking.store, at(20))
    empty = Kept(client, history(tmp_path, [("JFK", 10, 10, 0, 0.0, 0.0)]))
    with pytest.raises(ConfigurationError, match="a tile of entity 'JFK' in its history has 0 events"):
        await materialize(empty.view, empty.store, at(20))
    nan = Kept(client, history(tmp_path, [("JFK", 10, 10, 2, math.nan, 0.0)]))
    with pytest.raises(ConfigurationError, match=r"column delay of row 0 \(entity 'JFK'\) is NaN"):
        await materialize(nan.view, nan.store, at(20))
    nowhere = Kept(client, window_view("nowhere"))
    with pytest.raises(ConfigurationError, match="does not exist"):
        await materialize(nowhere.view, nowhere.store, at(20))


class TestReading:
    async def test_windowed_and_ordinary_views_come_in_one_read(self, client: Redis) -> None:
        windowed, plain = window_view(), make_view()
        store = OnlineStore(client, [windowed, plain], DAY_S)
        plan = WindowPlan(windowed)
        await store.write(plain, [row("N1", {"delay": 3})])
        await store.windows.apply([Departure(5, 30, 0).to(plan)])
        await store.windows.advance(windowed.name, {"departures/0": at(31)})
        reader = OnlineFeatureReader(store, [windowed, plain], clock=lambda: at(32))
        mean, flights, delay = f"{windowed.name}.mean_delay", f"{windowed.name}.flights", f"{plain.name}.delay"
        found = await reader.read([mean, delay, flights], {"airport": "JFK", "plane": "N1"}, NEVER)
        assert {ref: value.value for ref, value in found.values.items()} == {mean: 30.0, delay: 3, flights: 1}
        assert found.values[mean].age_s == 2.0
        assert (found.cost.reads, found.cost.hits, found.cost.round_trips) == (3, 3, 1)

    async def test_the_five_states(self, client: Redis) -> None:
        view = window_view()
        store = OnlineStore(client, [view], DAY_S)
        plan = WindowPlan(view)

        async def state(now_s: float, key: str, feature: str = "mean_delay") -> tuple[FeatureState, float | None]:
            reader = OnlineFeatureReader(store, [view], clock=lambda: at(now_s))
            value = (await reader.read([f"{view.name}.{feature}"], {"airport": key}, NEVER)).values
            return value[f"{view.name}.{feature}"].state, value[f"{view.name}.{feature}"].age_s

        assert await state(10, "JFK") == (FeatureState.MISSING, None), "never seen"
        await store.windows.apply([Departure(5, 30, 0).to(plan)])
        assert await state(10, "JFK") == (FeatureState.MISSING, None), "nothing says how far the stream has come"
        await store.windows.advance(view.name, {"departures/0": at(10)})
        assert await state(19, "JFK") == (FeatureState.PRESENT, 9.0)
        assert await state(40, "JFK") == (FeatureState.PRESENT, 30.0)
        assert await state(41, "JFK") == (FeatureState.STALE, 31.0), "the stream has left it behind"
        await store.windows.advance(view.name, {"departures/0": at(71)})
        assert await state(75, "JFK") == (FeatureState.NULL, 5.0), "watched, and no event to take a mean of"
        assert await state(75, "JFK", "flights") == (FeatureState.PRESENT, 5.0)

    async def test_a_lost_store_is_missing_with_its_reason_and_costs_the_trip(self, own_server: Valkey) -> None:
        client = connect(RedisSettings(url=own_server.url))
        view = window_view()
        reader = OnlineFeatureReader(OnlineStore(client, [view], DAY_S), [view])
        own_server.kill()
        found = await reader.read([f"{view.name}.flights"], {"airport": "JFK"}, NEVER)
        assert found.failure == "store_unavailable"
        assert found.cost == ReadCost(reads=2, round_trips=1)
        await client.aclose()


async def test_a_server_that_lost_the_functions_is_given_them_again(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url))
    kept = Kept(client, window_view())
    assert await kept.apply(Departure(1, 1, 0)) == [A]
    await client.function_flush()
    assert await kept.apply(Departure(1, 1, 0), Departure(2, 1, 1)) == [D, A]
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await kept.apply(Departure(3, 1, 2))
    await client.aclose()


async def test_a_view_without_a_window_is_refused_by_name(client: Redis) -> None:
    store = WindowStore(client, [make_view(name="plain")], DAY_S)
    with pytest.raises(ConfigurationError, match="feature view 'plain' has no window"):
        await store.seed("plain", at(0))
    assert store.plans("departures") == []

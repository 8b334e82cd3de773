"""A window's past from its events: against brute force on both clocks, against the stream, and into the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.errors import ConfigurationError
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureView, ParquetSource
from featurestore.materialize import materialize
from featurestore.offline.source import read_source
from featurestore.online.connection import connect
from featurestore.online.store import OnlineStore
from featurestore.windows.history import Backfilled, backfill_window
from featurestore.windows.plan import StoredWindow, WindowPlan
from tests.featurestore.rows import PROPERTY, make_view
from tests.featurestore.windows.kinds import AGGREGATES, DEPARTURES, brute, kinds_view, once_each
from tests.featurestore.windows.oracle import NUM_TILES, ORIGIN, TILE_S, TTL_S, Departure, at, seconds_of, tile_end_s

DAY_S = 86_400.0
NAMES = [aggregate.feature for aggregate in AGGREGATES]
EVENTS = st.lists(DEPARTURES, min_size=1, max_size=30).map(once_each).map(lambda events: list(dict.fromkeys(events)))
KNOWN_AFTER_S = (0, 0, 0, 3, 15, 40)
KEYS = {"JFK": "JFK", "L-G": "L%2DG"}  # airport, key


def declared(folder: Path, events: dict[str, Any], **window: Any) -> FeatureView:
    """A view of every kind with its three files in `folder`; `events` are the columns of the events'."""
    path = folder / "events.parquet"
    pq.write_table(pa.table(events), path)
    view = kinds_view(tiles_path=str(folder / "tiles.parquet"), events=ParquetSource(path=str(path)), **window)
    return msgspec.structs.replace(view, source=ParquetSource(path=str(folder / "rows.parquet")))


def columns(events: Sequence[tuple[Departure, float]]) -> dict[str, Any]:
    """Events, and how many seconds after their time each became known."""
    instant = pa.timestamp("us", tz="UTC")
    return {
        "event_time": pa.array([at(event.seconds) for event, _ in events], instant),
        "created_time": pa.array([at(event.seconds + known) for event, known in events], instant),
        "origin": [event.origin for event, _ in events],
        "delay": pa.array([event.delay for event, _ in events], pa.float64()),
        "plane": [event.plane for event, _ in events],
        "source": [event.source for event, _ in events],
        "offset": pa.array([event.offset for event, _ in events], pa.int64()),
    }


def rows_of(view: FeatureView) -> dict[str, dict[float, dict[float, list[Any]]]]:
    """What was written: by entity, tick and created time (seconds), the values."""
    source = read_source(view, NAMES)
    rows: dict[str, dict[float, dict[float, list[Any]]]] = {}
    values = zip(*(source.columns[name].to_pylist() for name in NAMES), strict=True)
    places = zip(source.keys.to_pylist(), source.event_us.to_pylist(), source.created_us.to_pylist(), strict=True)
    for (key, event_us, created_us), row in zip(places, values, strict=True):
        versions = rows.setdefault(key, {}).setdefault(seconds_of(event_us), {})
        assert seconds_of(created_us) not in versions, "one row per entity, tick and created time"
        versions[seconds_of(created_us)] = list(row)
    return rows


def covered(events: Sequence[Departure], tick_s: float) -> list[Departure]:
    return [event for event in events if tick_s - NUM_TILES * TILE_S < event.seconds <= tick_s]


def horizon_of(events: Sequence[Departure]) -> float:
    return max(tile_end_s(event.seconds) for event in events)


@PROPERTY
@given(events=EVENTS, after=st.lists(st.sampled_from(KNOWN_AFTER_S), min_size=30, max_size=30))
def test_at_any_instant_the_newest_row_is_what_was_known_then(
    tmp_path_factory: pytest.TempPathFactory, events: list[Departure], after: list[int]
) -> None:
    """The row that an as-of join takes, at every half second: it says what the newest tick says, or it is stale."""
    known_s = {event: event.seconds + delay for event, delay in zip(events, after, strict=False)}
    view = declared(tmp_path_factory.mktemp("known"), columns(list(zip(events, after, strict=False))))
    backfill_window(view)
    written = rows_of(view)
    for airport, key in KEYS.items():
        own = [event for event in events if event.origin == airport]
        assert (key in written) is bool(own)
        for now in (half / 2 for half in range(int(2 * horizon_of(events)) + 20)):
            known = [event for event in own if known_s[event] <= now]
            rows = [
                (tick, max(c for c in made if c <= now))
                for tick, made in written.get(key, {}).items()
                if min(made) <= now
            ]
            if not rows:
                assert not known or now < horizon_of(known), "before the first tick at which anything is known"
                continue
            tick, created = max(rows)
            assert written[key][tick][created] == brute(covered(known, tick))
            current = min(now // TILE_S * TILE_S, horizon_of(events))
            assert written[key][tick][created] == brute(covered(known, current)) or now - tick > TTL_S


@PROPERTY
@given(events=EVENTS, order=st.randoms(use_true_random=False), tumbling=st.booleans())
async def test_the_stream_in_any_order_and_a_seed_from_the_backfill_are_the_backfill(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory, events: list[Departure], order: Any, tumbling: bool
) -> None:
    view = declared(tmp_path_factory.mktemp("same"), columns([(e, 0) for e in events]), grace_s=600, tumbling=tumbling)
    backfill_window(view)
    end = at(horizon_of(events))
    seeded, streamed = (msgspec.structs.replace(view, name=f"{view.name}_{how}") for how in ("seeded", "streamed"))
    client = connect(RedisSettings(url=redis_url))
    try:
        store = OnlineStore(client, [seeded, streamed], DAY_S)
        await materialize(seeded, store, end)
        await store.windows.apply([event.to(WindowPlan(streamed)) for event in order.sample(events, len(events))])
        await store.windows.advance(streamed.name, {"departures/0": end})
        written = rows_of(view)
        for airport in {event.origin for event in events}:
            for each in (seeded, streamed):
                found = await served(store, each, KEYS[airport], end)
                assert found == expected(written.get(KEYS[airport], {}), found)
    finally:
        await client.aclose()


async def served(store: OnlineStore, view: FeatureView, key: str, end: datetime) -> dict[float, list[Any]]:
    """The values of the window at every tick up to `end`."""
    [stored] = (await store.fetch([(view, key)])).rows
    assert isinstance(stored, StoredWindow)
    rows = {}
    for tick in range(int((end - ORIGIN).total_seconds()) // TILE_S + 1):
        row = WindowPlan(view).row_at(stored, round(at(tick * TILE_S).timestamp() * 1e6))
        assert row is not None
        rows[seconds_of(row.event_us)] = row.values
    return rows


def expected(written: dict[float, dict[float, list[Any]]], ticks: Iterable[float]) -> dict[float, list[Any]]:
    """The same from the file, where an entity has rows only as long as they tell something."""
    return {tick: written[tick][max(written[tick])] if tick in written else brute([]) for tick in ticks}


class TestBackfill:
    def test_tiles_and_rows_are_counted_and_a_second_run_writes_the_same(self, tmp_path: Path) -> None:
        view = declared(
            tmp_path, columns([(Departure(1, 5, 0), 0), (Departure(2, 7, 1), 30), (Departure(35, 1, 2), 0)])
        )
        assert backfill_window(view) == Backfilled(events=3, entities=1, tiles=3, rows=7)
        before = [pq.read_table(tmp_path / name) for name in ("tiles.parquet", "rows.parquet")]
        seen: list[tuple[int, int]] = []
        backfill_window(view, lambda done, total: seen.append((done, total)))
        assert seen == [(1, 1)]
        assert [pq.read_table(tmp_path / name) for name in ("tiles.parquet", "rows.parquet")] == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["events.parquet", "rows.parquet", "tiles.parquet"]

    def test_an_event_that_an_archive_holds_twice_counts_once(self, tmp_path: Path) -> None:
        once, twice = Departure(1, 5, 0), [(Departure(1, 5, 0), 3.0), (Departure(1, 5, 0), 0.0)]
        view = declared(tmp_path, columns(twice))
        backfill_window(view)
        assert list(rows_of(view)["JFK"][10].values()) == [brute([once])]

    def test_without_coordinates_the_row_settles_equal_times(self, tmp_path: Path) -> None:
        events = columns([(Departure(1, 5, 0), 0), (Departure(1, 7, 0), 0), (Departure(1, 6, 0), 0)])
        view = declared(tmp_path, {name: events[name] for name in events if name not in {"source", "offset"}})
        backfill_window(view)
        [values] = rows_of(view)["JFK"][10].values()
        assert dict(zip(NAMES, values, strict=True))["newest"] == [6.0, 7.0, 5.0]

    def test_keys_of_several_fields_are_escaped_as_the_stream_does(self, tmp_path: Path) -> None:
        events = columns([(Departure(1, 5, 0, origin="L-G%"), 0)]) | {"flight": pa.array([12], pa.int32())}
        view = declared(tmp_path, events, key=("origin", "flight"))
        backfill_window(view)
        assert list(rows_of(view)) == [WindowPlan(view).key_of({"origin": "L-G%", "flight": 12})] == ["L%2DG%25-12"]

    @pytest.mark.parametrize(
        ("column", "values", "says"),
        [
            ("delay", pa.array([1.0, float("nan")]), r"column delay of row 1 \(entity \['JFK'\]\) = nan"),
            ("delay", pa.array([1.0, 2e9]), "column delay of row 1 .* = 2000000000.0 is no number between"),
            ("delay", pa.array([1.0, None]), "column delay of row 1 .* is null"),
            ("delay", pa.array(["1", "2"]), "column delay is string; expected an integer or a float"),
            ("plane", pa.array([None, "N1"]), "column plane of row 0"),
            ("origin", pa.array(["JFK", ""]), "column origin of row 1 .* part of the key of entity airport"),
            ("origin", pa.array([1.5, 2.5]), "column origin is double; expected a string or an integer"),
            ("event_time", pa.array([datetime(2026, 1, 1)] * 2), "column event_time is timestamp.us.; expected"),
            ("offset", pa.array([1.5, 2.5]), "column offset is double"),
        ],
    )
    def test_a_bad_value_is_refused_by_view_column_and_row_and_nothing_is_written(
        self, tmp_path: Path, column: str, values: pa.Array, says: str
    ) -> None:
        good = columns([(Departure(1, 5, 0), 0), (Departure(2, 7, 1), 0)])
        view = declared(tmp_path, good)
        backfill_window(view)
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "events.parquet"}
        pq.write_table(pa.table(good | {column: values}), tmp_path / "events.parquet")
        with pytest.raises(ConfigurationError, match=f"feature view {view.name}.*{says}"):
            backfill_window(view)
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "events.parquet"} == before

    def test_a_column_or_file_or_declaration_that_lacks_is_named(self, tmp_path: Path) -> None:
        events = columns([(Departure(1, 5, 0), 0)])
        lacking = declared(tmp_path, {name: events[name] for name in events if name != "delay"})
        with pytest.raises(ConfigurationError, match=r"lacks \['delay'\], which its window takes"):
            backfill_window(lacking)
        (tmp_path / "events.parquet").unlink()
        with pytest.raises(ConfigurationError, match="does not exist"):
            backfill_window(lacking)
        for view in (make_view(name="plain"), kinds_view()):
            with pytest.raises(ConfigurationError, match=f"feature view {view.name} has no window with `events`"):
                backfill_window(view)

    def test_a_place_that_cannot_be_written_leaves_the_other_file_as_it_was(self, tmp_path: Path) -> None:
        view = declared(tmp_path, columns([(Departure(1, 5, 0), 0)]))
        nowhere = msgspec.structs.replace(view, source=ParquetSource(path=str(tmp_path / "no" / "rows.parquet")))
        with pytest.raises(ConfigurationError, match="its history cannot be written"):
            backfill_window(nowhere)
        assert [path.name for path in tmp_path.iterdir()] == ["events.parquet"]


async def test_the_stream_goes_on_from_a_seed_of_every_kind(client: Redis, tmp_path: Path) -> None:
    past, later = [Departure(i, i * 3 - 20, i) for i in range(1, 31)], [Departure(i, i, i) for i in range(31, 51)]
    view = declared(tmp_path, columns([(event, 0) for event in past]))
    backfill_window(view)
    store, plan = OnlineStore(client, [view], DAY_S), WindowPlan(view)
    await materialize(view, store, at(30))
    assert {str(o) for o in await store.windows.apply([e.to(plan) for e in (*past, *later)])} == {"seeded", "applied"}
    await store.windows.advance(view.name, {"departures/0": at(50)})
    rows = await served(store, view, "JFK", at(50))
    assert {tick: rows[tick] for tick in (30, 40, 50)} == {
        tick: brute(covered([*past, *later], tick)) for tick in (30, 40, 50)
    }

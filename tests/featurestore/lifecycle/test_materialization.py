"""A run that remembers: what it writes, where it goes on, when its watermark moves, and what it does after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, InvalidRequest, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.codec import RowCodec
from featurestore.definitions import FeatureView
from featurestore.instants import to_us
from featurestore.keys import marks_key
from featurestore.lifecycle.materialization import Materializer, Options, RunReport
from featurestore.lifecycle.runs import Kind
from featurestore.lifecycle.watermarks import ViewBusy, Watermarks
from featurestore.online.connection import connect
from featurestore.online.fetched import StoredPayload
from featurestore.online.store import BATCH_ROWS, OnlineStore
from featurestore.registry import Status, register_view, set_status
from featurestore.windows.history import backfill_window
from tests.featurestore.lifecycle.windowed import counting_view
from tests.featurestore.offline.oracle import HISTORIES, KEYS, Known, columns, hours, newest_known
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, row, write_source
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0


class Cut(Exception):
    """A run ends here, as if its process were killed."""


@dataclass
class Online:
    """A view over a history that a test may rewrite, and what runs it."""

    view: FeatureView
    path: Path
    client: Redis
    watermarks: Watermarks
    store: OnlineStore

    def write(self, history: Sequence[Known]) -> None:
        write_source(self.path, columns(history))

    async def run(self, as_of: datetime = NOW, *, cut_after: int | None = None, **options: Any) -> RunReport:
        done = 0

        def tell(_done: int, _total: int) -> None:
            nonlocal done
            done += 1
            if done == cut_after:
                raise Cut

        materializer = Materializer(self.client, self.store, self.watermarks)
        return await materializer.run(self.view, Options(as_of=as_of, **options), tell)

    async def values(self, keys: Sequence[str] = KEYS) -> dict[str, tuple[int, list[Any]]]:
        found = (await self.store.fetch([(self.view, key) for key in keys])).rows
        codec = RowCodec(self.view)
        rows = zip(keys, found, strict=True)
        return {key: (s.event_us, codec.decode(s.payload)) for key, s in rows if isinstance(s, StoredPayload)}

    @property
    def watermark(self) -> datetime | None:
        held = self.watermarks.standing(self.view.name, self.view.version).watermark
        return None if held is None else held.at


def make_online(client: Redis, database: Engine, folder: Path, history: Sequence[Known] = ()) -> Online:
    view = make_view()
    path = folder / f"{view.name}.parquet"
    view = make_view(name=view.name, path=str(path))
    online = Online(view, path, client, Watermarks(database), OnlineStore(client, [view], DAY_S))
    online.write(history)
    return online


@pytest.fixture
async def online(client: Redis, database: Engine, tmp_path: Path) -> Online:
    return make_online(client, database, tmp_path)


def expected(history: Sequence[Known], as_of: datetime) -> dict[str, tuple[int, list[Any]]]:
    newest = {key: known for key in KEYS if (known := newest_known(history, key, as_of))}
    return {key: (to_us(known.event, ""), [known.value]) for key, known in newest.items()}


def crowd(num_rows: int, known: datetime = NOW) -> list[Known]:
    """One row per entity, all known at once, as a nightly job makes them."""
    return [Known(f"N{i}", NOW - HOUR, known, i) for i in range(num_rows)]


@settings(PROPERTY, max_examples=20)
@given(
    histories=st.lists(HISTORIES, min_size=1, max_size=3),
    runs=st.lists(st.tuples(hours(-6, 6), st.none() | st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=6),
)
async def test_whatever_ran_or_was_cut_before_a_run_leaves_the_newest_rows_known(
    client: Redis,
    database: Engine,
    tmp_path: Path,
    histories: list[list[Known]],
    runs: list[tuple[datetime, int | None, int]],
) -> None:
    """The history grows between runs, by rows that come late too; instants go forth and back."""
    online = make_online(client, database, tmp_path)
    history: list[Known] = []
    watermarks = []
    for i, (as_of, cut_after, num_shards) in enumerate(runs):
        history += histories[i] if i < len(histories) else []
        online.write(history)
        try:
            await online.run(as_of, cut_after=cut_after, num_shards=num_shards, rows_per_second=1e6)
        except Cut:
            continue
        watermarks.append(as_of)
        assert online.watermark == max(watermarks)
        if as_of == max(watermarks):  # a rebuild brings nothing that reached the source since
            found = await online.values()
            for key, (event_us, _) in expected(history, as_of).items():
                assert found[key][0] >= event_us, "a run that was cut may have brought a newer row, none an older one"
    last = NOW + 7 * HOUR
    await online.run(last, num_shards=runs[-1][2])
    assert await online.values() == expected(history, last)


async def test_a_second_run_writes_what_became_known_since_and_nothing_else(online: Online) -> None:
    old = [Known("N1", NOW - 5 * HOUR, NOW - 5 * HOUR, 1), Known("N2", NOW - 5 * HOUR, NOW - 5 * HOUR, 2)]
    late = [Known("Zürich-東京", NOW - 6 * HOUR, NOW - HOUR, 3), Known("N1", NOW - 6 * HOUR, NOW - HOUR, 9)]
    online.write(old + late)
    first = await online.run(NOW - 4 * HOUR)
    assert (first.kind, first.entities, first.written) == (Kind.FULL, 2, 2)
    second = await online.run(NOW)
    assert (second.kind, second.entities, second.written) == (Kind.INCREMENTAL, 1, 1), "created late, so known late"
    assert await online.values() == expected(old + late, NOW)
    third = await online.run(NOW)
    assert (third.kind, third.entities) == (Kind.INCREMENTAL, 0)
    assert online.watermark == NOW


async def test_a_row_that_reached_the_source_after_it_counted_as_known_is_not_lost(online: Online) -> None:
    history = [Known("N1", NOW - HOUR, NOW - HOUR, 1)]
    online.write(history)
    await online.run(NOW)
    history.append(Known("N2", NOW - HOUR, NOW - HOUR, 2))
    online.write(history)
    report = await online.run(NOW + HOUR)
    assert (report.kind, report.entities, report.written) == (Kind.FULL, 2, 1)
    assert "have come, gone or moved" in report.why
    assert await online.values() == expected(history, NOW)


@pytest.mark.parametrize("num_shards", [1, 3])
async def test_a_cut_run_goes_on_where_it_stopped(online: Online, num_shards: int) -> None:
    num_rows = 6 * BATCH_ROWS
    online.write(crowd(num_rows))
    with pytest.raises(Cut):
        await online.run(num_shards=num_shards, cut_after=4)
    assert online.watermark is None
    report = await online.run(num_shards=num_shards)
    assert report.is_resumed
    assert report.entities <= num_rows - 4 * BATCH_ROWS + (num_shards * BATCH_ROWS if num_shards > 1 else 0)
    assert online.watermark == NOW
    assert len(await online.values([f"N{i}" for i in range(num_rows)])) == num_rows


async def test_a_cut_run_goes_on_to_a_later_instant_too(online: Online) -> None:
    history = crowd(3 * BATCH_ROWS, NOW - HOUR)
    online.write(history)
    with pytest.raises(Cut):
        await online.run(NOW - HOUR, cut_after=2)
    history.append(Known("N0", NOW, NOW, 7))
    online.write(history)
    report = await online.run(NOW)
    assert (report.is_resumed, report.entities) == (True, BATCH_ROWS + 1)
    assert (await online.values(["N0"]))["N0"][1] == [7]


async def test_a_source_that_was_rewritten_is_not_gone_on_with_by_places(online: Online) -> None:
    online.write(crowd(3 * BATCH_ROWS))
    with pytest.raises(Cut):
        await online.run(cut_after=2)
    online.write(crowd(3 * BATCH_ROWS)[::-1])
    report = await online.run()
    assert (report.is_resumed, report.entities) == (False, 3 * BATCH_ROWS)


async def test_a_rebuild_of_the_past_keeps_what_is_newer_and_says_how_much(online: Online) -> None:
    history = [Known("N1", NOW - 3 * HOUR, NOW - 3 * HOUR, 1), Known("N1", NOW - HOUR, NOW - HOUR, 2)]
    history += [Known("N2", NOW - 3 * HOUR, NOW - 3 * HOUR, 3)]
    online.write(history)
    await online.run(NOW)
    await online.client.unlink(f"hr:{online.view.name}:1:{{N2}}")
    report = await online.run(NOW - 2 * HOUR)
    assert (report.kind, report.entities, report.written, report.kept) == (Kind.REBUILD, 2, 1, 1)
    assert report.watermark == online.watermark == NOW
    assert await online.values() == expected(history, NOW)
    assert (await online.run(NOW)).kind is Kind.INCREMENTAL, "the store is as far as it was"


async def test_of_two_runs_at_once_one_is_refused(online: Online) -> None:
    online.write(crowd(2 * BATCH_ROWS))
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(OnlineStore):
        async def write(self, *arguments: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await super().write(*arguments)

    slow = replace(online, store=Slow(online.client, [online.view], DAY_S))
    first = asyncio.create_task(slow.run())
    await begun.wait()
    with pytest.raises(ViewBusy, match=rf"{online.view.name} version 1 is being written by process \d+ on "):
        await online.run()
    go_on.set()
    assert (await first).written == 2 * BATCH_ROWS
    assert (await online.run()).entities == 0, "the lease was given back"


async def test_a_paced_run_writes_little_at_a_time(online: Online) -> None:
    online.write(crowd(50))
    steps: list[int] = []
    materializer = Materializer(online.client, online.store, online.watermarks)
    await materializer.run(online.view, Options(NOW, rows_per_second=80), lambda done, _total: steps.append(done))
    assert steps == [20, 40, 50]


async def test_a_failed_run_leaves_watermark_and_lease_free(online: Online) -> None:
    online.path.unlink()
    with pytest.raises(ConfigurationError, match="does not exist"):
        await online.run()
    with pytest.raises(InvalidRequest, match=r"as_of = .*timezone"):
        await online.run(datetime(2026, 1, 1))
    online.write(crowd(1))
    assert (await online.run()).written == 1


async def test_a_deleted_view_is_not_filled(online: Online, database: Engine) -> None:
    with Session(database) as session, session.begin():
        register_view(session, online.view)
        set_status(session, online.view.name, 1, Status.DELETING)
    with pytest.raises(ConfigurationError, match="is deleting; nothing is written"):
        await online.run()
    assert await online.client.exists(marks_key(online.view)) == 0


async def test_a_row_that_a_stream_wrote_since_stays(online: Online) -> None:
    online.write([Known("N1", NOW - HOUR, NOW - HOUR, 1)])
    await online.store.write(online.view, [row("N1", {"delay": 9}, NOW)])
    report = await online.run()
    assert (report.written, report.kept) == (0, 1)


async def test_the_tiles_of_a_window_are_loaded_and_its_watermark_kept(
    client: Redis, database: Engine, tmp_path: Path
) -> None:
    view = counting_view(tmp_path, [NOW - HOUR, NOW - HOUR + timedelta(seconds=1)])
    backfill_window(view)
    store = OnlineStore(client, [view], DAY_S)
    watermarks = Watermarks(database)
    materializer = Materializer(client, store, watermarks)
    first = await materializer.run(view, Options(NOW))
    assert (first.entities, first.written, first.watermark) == (1, 1, NOW)
    past = await materializer.run(view, Options(NOW - timedelta(minutes=5)))
    assert (past.kind, past.written, past.kept, past.watermark) == (Kind.REBUILD, 0, 1, NOW)
    assert (await store.fetch([(view, "JFK")])).rows != [None]


@pytest.fixture
async def losing(own_server: Valkey, database: Engine, tmp_path: Path) -> AsyncIterator[Online]:
    """Over a server of its own, which keeps nothing over a restart."""
    client = connect(RedisSettings(url=own_server.url))
    yield make_online(client, database, tmp_path, crowd(3 * BATCH_ROWS))
    await client.aclose()


async def test_a_store_that_lost_everything_is_filled_again(losing: Online, own_server: Valkey) -> None:
    await losing.run()
    own_server.kill()
    own_server.start()
    report = await losing.run(NOW + HOUR)
    assert (report.kind, report.written) == (Kind.FULL, 3 * BATCH_ROWS)
    assert "lost what it held" in report.why
    assert (await losing.run(NOW + 2 * HOUR)).kind is Kind.INCREMENTAL


async def test_what_a_cut_run_had_written_is_written_again_where_it_was_lost(
    losing: Online, own_server: Valkey
) -> None:
    with pytest.raises(Cut):
        await losing.run(cut_after=2)
    own_server.kill()
    own_server.start()
    report = await losing.run()
    assert (report.is_resumed, report.written) == (False, 3 * BATCH_ROWS)


async def test_a_store_that_dies_under_a_run_leaves_the_watermark(losing: Online, own_server: Valkey) -> None:
    materializer = Materializer(losing.client, losing.store, losing.watermarks)
    with pytest.raises(StoreUnavailable):
        await materializer.run(losing.view, Options(NOW, num_shards=2), lambda done, total: own_server.kill())
    assert losing.watermark is None
    own_server.start()
    await losing.run(num_shards=2)
    assert await losing.client.dbsize() == 3 * BATCH_ROWS + 1, "all rows and the mark"

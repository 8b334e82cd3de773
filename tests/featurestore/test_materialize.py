"""What reaches the online store is what was known at the instant; running it again changes nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from redis.asyncio import Redis

from core_engine.errors import ConfigurationError, InvalidRequest, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.codec import ABSENT, RowCodec
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import to_us
from featurestore.materialize import MaterializeResult, materialize
from featurestore.online.connection import connect
from featurestore.online.fetched import StoredPayload
from featurestore.online.store import BATCH_ROWS, OnlineStore
from tests.featurestore.offline.oracle import HISTORIES, KEYS, Known, columns, hours, newest_known
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, row, write_source
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0


def history_view(folder: Path, history: list[Known]) -> FeatureView:
    return make_view(path=write_source(folder / "history.parquet", columns(history)))


async def stored(store: OnlineStore, view: FeatureView, keys: tuple[str, ...]) -> dict[str, tuple[int, list[Any]]]:
    found = (await store.fetch([(view, key) for key in keys])).rows
    codec = RowCodec(view)
    rows = zip(keys, found, strict=True)
    return {k: (s.event_us, codec.decode(s.payload)) for k, s in rows if isinstance(s, StoredPayload)}


@settings(PROPERTY, max_examples=30)
@given(history=HISTORIES, as_of=hours(-8, 8))
async def test_every_entity_gets_the_newest_row_known_then(
    client: Redis, tmp_path: Path, history: list[Known], as_of: datetime
) -> None:
    view = history_view(tmp_path, history)
    store = OnlineStore(client, [view], DAY_S)
    expected = {key: known for key in KEYS if (known := newest_known(history, key, as_of))}
    first = await materialize(view, store, as_of)
    assert first == MaterializeResult(len(expected), written=len(expected), kept=0, expired=0)
    assert await stored(store, view, KEYS) == {
        key: (to_us(known.event, ""), [known.value]) for key, known in expected.items()
    }
    again = await materialize(view, store, as_of)
    assert again == MaterializeResult(len(expected), written=0, kept=len(expected), expired=0)


async def test_a_later_run_brings_what_became_known_and_an_earlier_one_takes_nothing_back(
    client: Redis, tmp_path: Path
) -> None:
    history = [Known("N1", NOW - 3 * HOUR, NOW - 3 * HOUR, 1), Known("N1", NOW - 2 * HOUR, NOW - HOUR, 2)]
    view = history_view(tmp_path, history)
    store = OnlineStore(client, [view], DAY_S)
    values = []
    for as_of in (NOW - 2 * HOUR, NOW, NOW - 2 * HOUR):
        await materialize(view, store, as_of)
        values.append((await stored(store, view, ("N1",)))["N1"][1])
    assert values == [[1], [2], [2]]


async def test_a_row_appended_with_the_same_clocks_replaces_the_earlier_one(client: Redis, tmp_path: Path) -> None:
    """Position in the source is the offset: online and offline settle the tie alike."""
    first, appended = Known("N1", NOW, NOW, 1), Known("N1", NOW, NOW, 2)
    view = history_view(tmp_path, [first])
    store = OnlineStore(client, [view], DAY_S)
    await materialize(view, store, NOW)
    write_source(tmp_path / "history.parquet", columns([first, appended]))
    assert (await materialize(view, store, NOW)).written == 1
    assert (await stored(store, view, ("N1",)))["N1"][1] == [2]


async def test_a_row_that_a_stream_wrote_since_stays(client: Redis, tmp_path: Path) -> None:
    view = history_view(tmp_path, [Known("N1", NOW - HOUR, NOW - HOUR, 1)])
    store = OnlineStore(client, [view], DAY_S)
    await store.write(view, [row("N1", {"delay": 9}, NOW)])
    assert await materialize(view, store, NOW) == MaterializeResult(1, written=0, kept=1, expired=0)
    assert (await stored(store, view, ("N1",)))["N1"][1] == [9]


async def test_a_shifted_clock_moves_both_times_before_the_instant_is_applied(client: Redis, tmp_path: Path) -> None:
    """The example's case: a history of years ago, read as if it were now."""
    shift = timedelta(days=7 * 600)
    history = [
        Known("N1", NOW - shift - HOUR, NOW - shift - HOUR, 1),
        Known("N1", NOW - shift, NOW - shift + timedelta(microseconds=1), 2),  # known a microsecond too late
        Known("N2", NOW - shift + HOUR, NOW - shift - HOUR, 3),  # foretold, not happened
    ]
    view = history_view(tmp_path, history)
    store = OnlineStore(client, [view], DAY_S)
    assert await materialize(view, store, NOW, shift=shift) == MaterializeResult(1, written=1, kept=0, expired=0)
    assert await stored(store, view, KEYS) == {"N1": (to_us(NOW - HOUR, ""), [1])}


async def test_without_the_shift_an_old_history_is_expired_and_said_to_be(client: Redis, tmp_path: Path) -> None:
    years_ago = NOW - timedelta(days=4000)
    view = history_view(tmp_path, [Known("N1", years_ago, years_ago, 1)])
    store = OnlineStore(client, [view], DAY_S)
    assert await materialize(view, store, NOW) == MaterializeResult(1, written=0, kept=0, expired=1)


async def test_every_type_arrives_null_and_absent_included(client: Redis, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "bool": True,
        "int64": -(2**63),
        "float64": 0.1,
        "string": "é",
        "bytes": b"",
        "decimal": Decimal(10**38 - 1),
        "gone": None,
        "tags": ["é", ""],
    }
    usual = {"entity_key": ["N1"], "event_time": [NOW], "created_time": [NOW]}
    typed = {name: pa_column(name, value) for name, value in (values | {"timestamp": NOW}).items()}
    fields = [Field(name=kind.value, type=kind) for kind in FeatureType]
    fields += [Field(name="gone", type=FeatureType.INT64), Field(name="left_out", type=FeatureType.INT64, default=0)]
    fields += [Field(name="tags", type=FeatureType.STRING, is_list=True)]
    view = make_view(*fields, path=write_source(tmp_path / "v.parquet", usual | typed))
    store = OnlineStore(client, [view], DAY_S)
    await materialize(view, store, NOW)
    [(_, found)] = (await stored(store, view, ("N1",))).values()
    assert dict(zip([field.name for field in fields], found, strict=True)) == values | {
        "timestamp": NOW,
        "left_out": ABSENT,
    }


def pa_column(name: str, value: Any) -> pa.Array:
    kinds = {"timestamp": pa.timestamp("us", tz="UTC"), "gone": pa.int64()}
    return pa.array([value], kinds.get(name))


async def test_progress_goes_from_the_first_batch_to_all(client: Redis, tmp_path: Path) -> None:
    num_rows = 2 * BATCH_ROWS + 5
    view = history_view(tmp_path, [Known(f"N{i}", NOW, NOW, i) for i in range(num_rows)])
    seen: list[tuple[int, int]] = []
    result = await materialize(
        view, OnlineStore(client, [view], DAY_S), NOW, on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(BATCH_ROWS, num_rows), (2 * BATCH_ROWS, num_rows), (num_rows, num_rows)]
    assert result.written == num_rows


async def test_a_run_that_died_is_finished_by_running_it_again(own_server: Valkey, tmp_path: Path) -> None:
    num_rows = 2 * BATCH_ROWS
    view = history_view(tmp_path, [Known(f"N{i}", NOW, NOW, i) for i in range(num_rows)])
    client: Any = connect(RedisSettings(url=own_server.url))
    store = OnlineStore(client, [view], DAY_S)
    with pytest.raises(StoreUnavailable):
        await materialize(view, store, NOW, on_progress=lambda done, total: own_server.kill())
    own_server.start()
    await store.write(view, [row("N0", {"delay": 0}, NOW)])
    result = await materialize(view, store, NOW)
    assert (result.entities, result.written + result.kept) == (num_rows, num_rows)
    assert await client.dbsize() == num_rows
    await client.aclose()


async def test_a_naive_instant_and_a_missing_source_are_refused(client: Redis) -> None:
    view = make_view(path="nowhere.parquet")
    store = OnlineStore(client, [view], DAY_S)
    with pytest.raises(InvalidRequest, match=r"as_of = .*timezone"):
        await materialize(view, store, datetime(2013, 1, 1))
    with pytest.raises(ConfigurationError, match=r"nowhere.parquet' does not exist"):
        await materialize(view, store, NOW)

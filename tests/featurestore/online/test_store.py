"""Newest wins, whatever the order of arrival, on a real server; and what becomes of a server that is lost."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.contracts import ReadCost
from core_engine.errors import ConfigurationError, InvalidRequest, StoreFull, StoreReadOnly, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.codec import INT64_MAX, RowCodec, UnreadablePayload
from featurestore.definitions import FeatureType, FeatureView, Field, StoredRow
from featurestore.instants import to_us
from featurestore.keys import row_key
from featurestore.online.connection import connect
from featurestore.online.fetched import Fetched, StoredPayload
from featurestore.online.store import BATCH_ROWS, OnlineStore, WriteResult
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, row, unique
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0
SECOND = timedelta(seconds=1)


class Coordinates(NamedTuple):
    """Where a row stands: what decides is this tuple's own order."""

    event: int
    created: int
    offset: int


FIELDS = tuple(Field(name=name, type=FeatureType.INT64) for name in Coordinates._fields)
SMALL = st.integers(0, 2)
ROWS = st.lists(st.builds(Coordinates, SMALL, SMALL, SMALL), min_size=1, max_size=12)


def at(coordinates: Coordinates, key: str) -> StoredRow:
    """A row that says in its values where it stands."""
    event, created = NOW + coordinates.event * SECOND, NOW + coordinates.created * SECOND
    return row(key, coordinates._asdict(), event, created, coordinates.offset)


async def held(store: OnlineStore, view: FeatureView, key: str) -> list[Any] | None:
    [stored] = (await store.fetch([(view, key)])).rows
    return RowCodec(view).decode(stored.payload) if isinstance(stored, StoredPayload) else None


@pytest.fixture
async def writers(redis_url: str) -> AsyncIterator[list[Redis]]:
    """Eight clients: eight connections, whose commands the server takes in any order."""
    clients = [connect(RedisSettings(url=redis_url)) for _ in range(8)]
    yield list(clients)
    for client in clients:
        await client.aclose()


@settings(PROPERTY, max_examples=60)
@given(rows=st.lists(st.builds(Coordinates, SMALL, SMALL, SMALL), min_size=8, max_size=40), seed=st.integers(0, 2**16))
async def test_the_newest_row_stays_with_eight_writers_in_any_order(
    writers: list[Redis], rows: list[Coordinates], seed: int
) -> None:
    view, key = make_view(*FIELDS), unique("plane")
    stores = [OnlineStore(client, [view], DAY_S) for client in writers]
    shuffled = random.Random(seed).sample(rows, len(rows))
    parts = [[at(coordinates, key) for coordinates in shuffled[i::8]] for i in range(8)]
    results = sum(
        await asyncio.gather(*(store.write(view, part) for store, part in zip(stores, parts, strict=True))),
        WriteResult(),
    )
    assert await held(stores[0], view, key) == list(max(rows))
    assert results.written + results.kept == len(rows)
    assert 1 <= results.written <= len(set(rows))


@settings(PROPERTY, max_examples=40)
@given(rows=ROWS)
async def test_a_batch_counts_what_it_wrote_and_what_it_kept(client: Redis, rows: list[Coordinates]) -> None:
    view, key = make_view(*FIELDS), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    result = await store.write(view, [at(coordinates, key) for coordinates in rows])
    records = sum(all(earlier < coordinates for earlier in rows[:i]) for i, coordinates in enumerate(rows))
    assert result == WriteResult(written=records, kept=len(rows) - records)


async def test_a_tie_keeps_what_is_there(client: Redis) -> None:
    view, key = make_view(), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    assert await store.write(view, [row(key, {"delay": 1}), row(key, {"delay": 2})]) == WriteResult(1, 1)
    assert await held(store, view, key) == [1]


async def test_a_correction_of_the_same_event_wins_by_its_created_time(client: Redis) -> None:
    view, key = make_view(), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    corrected = row(key, {"delay": 2}, created_time=NOW + timedelta(microseconds=1))
    assert (await store.write(view, [corrected, row(key, {"delay": 1}, offset=99)])).written == 1
    assert await held(store, view, key) == [2]


async def test_a_row_replaces_the_whole_row(client: Redis) -> None:
    view, key = make_view(*FIELDS), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    await store.write(view, [row(key, {"event": 1, "created": 2}), row(key, {"offset": 3}, NOW + SECOND)])
    assert (await held(store, view, key)) == RowCodec(view).decode(RowCodec(view).encode({"offset": 3}))


async def test_one_hash_of_three_fields_expires_at_event_time_plus_ttl_plus_retention(client: Redis) -> None:
    view, key = make_view(ttl_s=3600.0), unique("plane")
    store = OnlineStore(client, [view], retention_s=DAY_S)
    await store.write(view, [row(key, {"delay": 1}, NOW - HOUR)])
    server: Any = client
    assert set(await server.hgetall(row_key(view, key))) == {b"t", b"s", b"p"}
    expected_ms = to_us(NOW + timedelta(seconds=DAY_S), "expiry") // 1000
    assert await server.pexpiretime(row_key(view, key)) == expected_ms
    await store.write(view, [row(key, {"delay": 2}, NOW)])
    assert await server.pexpiretime(row_key(view, key)) == expected_ms + 3_600_000


async def test_a_row_past_its_retention_is_counted_and_not_sent(client: Redis) -> None:
    view, key = make_view(ttl_s=3600.0), unique("plane")
    store = OnlineStore(client, [view], retention_s=3600.0, clock=lambda: NOW)
    rows = [row(key, {"delay": 1}, NOW - 2 * HOUR), row(key, {"delay": 2}, NOW - HOUR)]
    assert await store.write(view, rows) == WriteResult(written=1, expired=1)
    assert await held(store, view, key) == [2]


async def test_a_far_event_time_meets_the_end_of_the_calendar_and_no_error(client: Redis) -> None:
    view, key = make_view(ttl_s=1e12), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    last = row(key, {"delay": 9}, datetime.max.replace(tzinfo=NOW.tzinfo), offset=INT64_MAX)
    assert (await store.write(view, [last])).written == 1
    assert await held(store, view, key) == [9]
    await client.delete(row_key(view, key))


async def test_rows_beyond_one_batch_all_arrive(client: Redis) -> None:
    view = make_view()
    store = OnlineStore(client, [view], DAY_S)
    keys = [f"N{i}" for i in range(2 * BATCH_ROWS + 1)]
    result = await store.write(view, (row(key, {"delay": i}) for i, key in enumerate(keys)))
    assert result == WriteResult(written=len(keys))
    found = (await store.fetch([(view, key) for key in keys])).rows
    codec = RowCodec(view)
    assert [codec.decode(stored.payload) for stored in found if isinstance(stored, StoredPayload)] == [
        [i] for i in range(len(keys))
    ]


async def test_nothing_to_write_or_fetch_asks_nothing(client: Redis) -> None:
    view = make_view()
    store = OnlineStore(client, [view], DAY_S)
    assert await store.write(view, []) == WriteResult()
    assert await store.fetch([]) == Fetched([], ReadCost())


async def test_versions_of_a_view_live_side_by_side(client: Redis) -> None:
    first, key = make_view(), unique("plane")
    second = make_view(Field(name="gate", type=FeatureType.STRING), name=first.name, version=2)
    store = OnlineStore(client, [first, second], DAY_S)
    await store.write(first, [row(key, {"delay": 1})])
    await store.write(second, [row(key, {"gate": "B4"})])
    assert (await held(store, first, key), await held(store, second, key)) == ([1], ["B4"])


def test_all_views_of_an_entity_share_a_node_of_a_cluster() -> None:
    assert row_key(make_view(name="a"), "N{1}") == "hr:a:1:{N{1}}"
    assert row_key(make_view(name="b", version=2), "JFK-LAX") == "hr:b:2:{JFK-LAX}"


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (row("", {"delay": 1}), "plane"),
        (row("N\udfff", {"delay": 1}), "plane"),
        (row("N1", {"delay": "1"}), "v.delay"),
        (row("N1", {"delay": 1}, offset=-1), "v.offset"),
        (row("N1", {"delay": 1}, offset=INT64_MAX + 1), "v.offset"),
        (row("N1", {"delay": 1}, event_time=datetime(2013, 1, 1)), "v.event_time"),
        (row("N1", {"delay": 1}, created_time=datetime(2013, 1, 1)), "v.created_time"),
    ],
)
async def test_a_row_that_does_not_fit_stops_its_batch(client: Redis, bad: StoredRow, field: str) -> None:
    view, key = make_view(name="v"), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    with pytest.raises(InvalidRequest) as refused:
        await store.write(view, [row(key, {"delay": 1}), bad])
    assert refused.value.field == field
    assert await held(store, view, key) is None


async def test_a_view_that_is_not_the_declared_one_is_refused(client: Redis) -> None:
    view = make_view()
    store = OnlineStore(client, [view], DAY_S)
    for other in (make_view(), make_view(name=view.name, version=2), make_view(name=view.name, ttl_s=1.0)):
        with pytest.raises(ConfigurationError, match="is not the one that this store was built with"):
            await store.write(other, [])


async def test_a_client_that_decodes_replies_is_refused(redis_url: str) -> None:
    client = Redis.from_url(redis_url, decode_responses=True)
    with pytest.raises(ConfigurationError, match="decode_responses must be off"):
        OnlineStore(client, [], DAY_S)
    await client.aclose()


async def test_what_others_wrote_under_our_key_is_an_error_not_a_guess(client: Redis) -> None:
    view, hash_key, string_key, key = make_view(), unique("hash"), unique("string"), unique("plane")
    store = OnlineStore(client, [view], DAY_S)
    server: Any = client
    await server.hset(row_key(view, hash_key), mapping={"t": "yesterday", "p": "x"})
    await server.set(row_key(view, string_key), "x")
    await store.write(view, [row(key, {"delay": 1})])
    *foreign, ours = (await store.fetch([(view, hash_key), (view, string_key), (view, key)])).rows
    for unreadable in foreign:
        assert isinstance(unreadable, UnreadablePayload)
        assert re.search(rf"{view.name}: the hash .* was not written by this store", str(unreadable))
    assert isinstance(ours, StoredPayload)
    with pytest.raises(StoreUnavailable, match=f"{view.name}, entity plane = {string_key!r}: WRONGTYPE"):
        await store.write(view, [row(string_key, {"delay": 1})])
    await server.delete(row_key(view, hash_key), row_key(view, string_key))


async def test_a_server_without_the_function_is_given_it_and_nothing_is_counted_twice(own_server: Valkey) -> None:
    view = make_view()
    client: Any = connect(RedisSettings(url=own_server.url))
    store = OnlineStore(client, [view], DAY_S)
    rows = [row(f"N{i}", {"delay": i}) for i in range(10)]
    assert await store.write(view, rows) == WriteResult(written=10)
    await client.function_flush()
    assert await store.write(view, [*rows, row("N10", {"delay": 10})]) == WriteResult(written=1, kept=10)
    await client.aclose()


async def test_two_writers_may_load_the_function_at_once(own_server: Valkey) -> None:
    view = make_view()
    clients = [connect(RedisSettings(url=own_server.url)) for _ in range(8)]
    writers = [
        OnlineStore(client, [view], DAY_S).write(view, [row(f"N{i}", {"delay": i})]) for i, client in enumerate(clients)
    ]
    assert sum(await asyncio.gather(*writers), WriteResult()) == WriteResult(written=8)
    for client in clients:
        await client.aclose()


async def test_a_server_killed_and_started_again_is_written_as_before(own_server: Valkey) -> None:
    view = make_view()
    client = connect(RedisSettings(url=own_server.url))
    store = OnlineStore(client, [view], DAY_S)
    assert (await store.write(view, [row("N1", {"delay": 1})])).written == 1
    own_server.kill()
    with pytest.raises(StoreUnavailable, match="online store: "):
        await store.write(view, [row("N1", {"delay": 2}, NOW + SECOND)])
    with pytest.raises(StoreUnavailable):
        await store.fetch([(view, "N1")])
    own_server.start()
    assert await held(store, view, "N1") is None
    assert (await store.write(view, [row("N1", {"delay": 2}, NOW + SECOND)])).written == 1
    assert await held(store, view, "N1") == [2]
    await client.aclose()


async def test_a_full_server_refuses_rows_by_name_and_serves_what_it_has(own_server: Valkey) -> None:
    view, other = make_view(), make_view()
    client: Any = connect(RedisSettings(url=own_server.url))
    store = OnlineStore(client, [view, other], DAY_S)
    await store.write(view, [row("N1", {"delay": 1})])
    await store.write(other, [row("N1", {"delay": 3})])
    await client.config_set("maxmemory", 1)
    with pytest.raises(StoreFull, match=rf"{view.name}, entity plane = 'N2': OOM command not allowed.*more memory"):
        await store.write(view, [row("N2", {"delay": 2}), row("N1", {"delay": 2}, NOW + SECOND)])
    assert [await held(store, view, key) for key in ("N1", "N2")] == [[1], None]
    assert await held(store, other, "N1") == [3]
    await client.config_set("maxmemory", 0)
    assert (await store.write(view, [row("N2", {"delay": 2})])).written == 1
    await client.aclose()


async def test_a_replica_refuses_rows_by_name_and_serves_what_it_has(own_server: Valkey) -> None:
    view = make_view()
    client: Any = connect(RedisSettings(url=own_server.url))
    store = OnlineStore(client, [view], DAY_S)
    await store.write(view, [row("N1", {"delay": 1})])
    await client.replicaof("127.0.0.1", "1")  # nobody there, so that it keeps what it has
    with pytest.raises(StoreReadOnly, match=rf"{view.name}, entity plane = 'N2': READONLY .*name the primary"):
        await store.write(view, [row("N2", {"delay": 2})])
    assert await held(store, view, "N1") == [1]
    await client.replicaof("NO", "ONE")
    assert (await store.write(view, [row("N2", {"delay": 2})])).written == 1
    await client.aclose()

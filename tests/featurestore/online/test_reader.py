"""Five states, one round trip, and an answer whatever became of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureRow, FeatureState, FeatureValue, ReadCost, entity_key
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.settings import RedisSettings
from featurestore.codec import RowCodec
from featurestore.definitions import FeatureType, Field
from featurestore.keys import row_key
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.deadlines import always_left
from tests.featurestore.rows import HOUR, NOW, make_view, row, unique
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0
NEVER = Deadline.never()
LONG_S = 3600.0  # no test waits for this: a deadline or an error ends it before
PLANE = make_view(
    Field(name="delay", type=FeatureType.INT64),
    Field(name="flights", type=FeatureType.INT64, default=0),
    Field(name="gate", type=FeatureType.STRING),
    ttl_s=7200.0,
)
ROUTE = make_view(Field(name="late_share", type=FeatureType.FLOAT64), entity="route")
VIEWS = [PLANE, ROUTE]
DELAY, FLIGHTS, GATE = (f"{PLANE.name}.{field.name}" for field in PLANE.schema)
LATE_SHARE = f"{ROUTE.name}.late_share"
REFS = [DELAY, LATE_SHARE, FLIGHTS, GATE]


@pytest.fixture
async def keys(client: Redis) -> dict[str, str]:
    """A plane and a route with a stored row each, an hour old."""
    keys = {"plane": unique("N"), "route": entity_key("JFK", unique("LAX"))}
    store = OnlineStore(client, VIEWS, DAY_S)
    await store.write(PLANE, [row(keys["plane"], {"delay": 12, "gate": None}, NOW - HOUR)])
    await store.write(ROUTE, [row(keys["route"], {"late_share": 0.25}, NOW - HOUR)])
    return keys


def reader_of(client: Redis, now: datetime = NOW) -> OnlineFeatureReader:
    return OnlineFeatureReader(OnlineStore(client, VIEWS, DAY_S), VIEWS, clock=lambda: now)


def is_all_missing(row: FeatureRow, failure: str) -> bool:
    return row.failure == failure and all(
        value == FeatureValue(None, FeatureState.MISSING) for value in row.values.values()
    )


async def test_present_default_null_and_missing_are_told_apart(client: Redis, keys: dict[str, str]) -> None:
    found = await reader_of(client).read(REFS, keys | {"route": "nowhere"}, NEVER)
    assert found.values == {
        DELAY: FeatureValue(12, FeatureState.PRESENT, 3600.0),
        FLIGHTS: FeatureValue(0, FeatureState.DEFAULT, 3600.0),
        GATE: FeatureValue(None, FeatureState.NULL, 3600.0),
        LATE_SHARE: FeatureValue(None, FeatureState.MISSING, None),
    }
    assert found.failure is None


async def test_stale_is_judged_on_read_by_event_time_and_keeps_its_value(client: Redis, keys: dict[str, str]) -> None:
    at_ttl = await reader_of(client, NOW + HOUR).read([DELAY], keys, NEVER)
    past_ttl = await reader_of(client, NOW + HOUR + timedelta(microseconds=1)).read([DELAY], keys, NEVER)
    assert at_ttl.values[DELAY] == FeatureValue(12, FeatureState.PRESENT, 7200.0)
    assert past_ttl.values[DELAY] == FeatureValue(12, FeatureState.STALE, 7200.000001)


async def test_the_cost_counts_hashes_hits_bytes_and_the_trip(client: Redis, keys: dict[str, str]) -> None:
    found = await reader_of(client).read(REFS, keys | {"route": "nowhere"}, NEVER)
    payload = RowCodec(PLANE).encode({"delay": 12, "gate": None})
    assert found.cost == ReadCost(reads=2, hits=1, bytes=len(payload), round_trips=1)


async def test_no_features_cost_nothing(client: Redis) -> None:
    assert await reader_of(client).read([], {}, NEVER) == FeatureRow({})


async def test_a_feature_asked_for_twice_is_one_value(client: Redis, keys: dict[str, str]) -> None:
    found = await reader_of(client).read([DELAY, DELAY], keys, NEVER)
    assert found.values == {DELAY: FeatureValue(12, FeatureState.PRESENT, 3600.0)}
    assert found.cost.reads == 1


class Turns:
    """How often a client spoke after the server had answered: its round trips."""

    def __init__(self) -> None:
        self.count = 0
        self._server_spoke_last = True

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_client: bool) -> None:
        while chunk := await reader.read(1 << 16):
            self.count += is_client and self._server_spoke_last
            self._server_spoke_last = not is_client
            writer.write(chunk)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def counting_proxy(upstream: str, listen: Path) -> AsyncIterator[Turns]:
    turns = Turns()
    serving = list[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        up_reader, up_writer = await asyncio.open_unix_connection(upstream)
        await asyncio.gather(turns.forward(reader, up_writer, True), turns.forward(up_reader, writer, False))
        await asyncio.gather(writer.wait_closed(), up_writer.wait_closed(), return_exceptions=True)

    server = await asyncio.start_unix_server(serve, listen)
    try:
        yield turns
    finally:
        await asyncio.gather(*filter(None, serving))
        server.close()
        await server.wait_closed()


async def test_many_views_are_one_round_trip_on_the_wire(own_server: Valkey, socket_dir: Path) -> None:
    views = [make_view(entity=f"entity{i}") for i in range(8)]
    keys = {view.entity: "k" for view in views}
    async with counting_proxy(own_server.url.removeprefix("unix://"), socket_dir / "proxy.sock") as turns:
        client = connect(RedisSettings(url=f"unix://{socket_dir / 'proxy.sock'}"))
        reader = OnlineFeatureReader(OnlineStore(client, views, DAY_S), views)
        refs = [f"{view.name}.delay" for view in views]
        await reader.read(refs, keys, NEVER)  # opens the connection
        before = turns.count
        await reader.read(refs, keys, NEVER)
        assert turns.count - before == 1
        await client.aclose()


async def test_what_is_not_declared_is_refused(client: Redis, keys: dict[str, str]) -> None:
    for ref in ("weather.wind", f"{PLANE.name}.wings", "delay"):
        with pytest.raises(ConfigurationError):
            await reader_of(client).read([DELAY, ref], keys, NEVER)


async def test_a_missing_entity_key_is_named(client: Redis) -> None:
    with pytest.raises(InvalidRequest, match="entity route = None") as refused:
        await reader_of(client).read(REFS, {"plane": "N1"}, NEVER)
    assert refused.value.field == "route"


@pytest.mark.parametrize("damage", [("p", b"\x63newer"), ("p", b""), ("p", b"\x01"), ("t", b"yesterday"), None])
async def test_a_value_that_cannot_be_read_costs_its_own_view_only(
    client: Redis, keys: dict[str, str], damage: tuple[str, bytes] | None
) -> None:
    server: Any = client
    key = row_key(ROUTE, keys["route"])
    if damage is None:
        await server.delete(key)
        await server.set(key, "a string, where a hash belongs")
    else:
        await server.hset(key, *damage)
    found = await reader_of(client).read(REFS, keys, NEVER)
    assert found.values[LATE_SHARE] == FeatureValue(None, FeatureState.MISSING)
    assert found.values[DELAY] == FeatureValue(12, FeatureState.PRESENT, 3600.0)
    assert (found.failure, found.unreadable) == (None, (ROUTE.name,))


async def test_a_value_that_cannot_be_read_is_logged_with_view_and_entity(client: Redis, keys: dict[str, str]) -> None:
    await client.hset(row_key(ROUTE, keys["route"]), "p", b"\x63newer")
    with structlog.testing.capture_logs() as lines:
        await reader_of(client).read(REFS, keys, NEVER)
    assert [(line["event"], line["view"], line["entity"]) for line in lines] == [
        ("feature_payload_unreadable", ROUTE.name, keys["route"])
    ]


class TestManyAtOnce:
    """`read_many` beside `read`: the same values, in one round trip."""

    async def test_each_row_is_what_a_read_of_its_own_gives(self, client: Redis, keys: dict[str, str]) -> None:
        requests = [keys, keys | {"route": "nowhere"}, keys | {"plane": "unknown"}, keys]
        reader = reader_of(client, NOW + HOUR + timedelta(seconds=1))
        table = await reader.read_many(REFS, requests, NEVER)
        for i, request in enumerate(requests):
            alone = await reader.read(REFS, request, NEVER)
            assert table.row(i).values == alone.values
            assert {ref: table.value(i, ref) for ref in REFS} == alone.values
            assert table.row(i).at_us == alone.at_us
        assert table.column(FLIGHTS) == [0, 0, None, 0]
        assert table.column(LATE_SHARE) == [0.25, None, 0.25, 0.25]
        assert (table.cost.reads, table.cost.hits, table.cost.round_trips) == (8, 6, 1)

    async def test_a_value_that_cannot_be_read_costs_its_own_cell(self, client: Redis, keys: dict[str, str]) -> None:
        other = {"plane": unique("N"), "route": keys["route"]}
        await OnlineStore(client, VIEWS, DAY_S).write(PLANE, [row(other["plane"], {"delay": 7})])
        await client.hset(row_key(PLANE, other["plane"]), "p", b"\x63newer")
        table = await reader_of(client).read_many(REFS, [keys, other], NEVER)
        assert [table.row(i).unreadable for i in range(2)] == [(), (PLANE.name,)]
        assert table.column(DELAY) == [12, None]
        assert table.value(1, LATE_SHARE).value == 0.25

    async def test_a_passed_deadline_or_a_lost_store_leaves_every_value_missing(self, own_server: Valkey) -> None:
        client = connect(RedisSettings(url=own_server.url))
        requests = [{"plane": f"N{i}", "route": "R"} for i in range(3)]
        late = await reader_of(client).read_many(REFS, requests, Deadline.after(-1.0))
        own_server.kill()
        lost = await reader_of(client).read_many(REFS, requests, NEVER)
        for table, failure in ((late, "deadline"), (lost, "store_unavailable")):
            assert table.failure == failure
            assert all(is_all_missing(table.row(i), failure) for i in range(3))
        await client.aclose()

    async def test_no_requests_are_an_empty_table(self, client: Redis) -> None:
        table = await reader_of(client).read_many(REFS, [], NEVER)
        assert (table.num_rows, table.column(DELAY), table.cost) == (0, [], ReadCost())

    async def test_a_missing_entity_key_is_named(self, client: Redis, keys: dict[str, str]) -> None:
        with pytest.raises(InvalidRequest, match="entity route = None"):
            await reader_of(client).read_many(REFS, [keys, {"plane": "N1"}], NEVER)


async def test_a_view_read_by_two_entities_is_two_rows_of_one_trip(client: Redis, keys: dict[str, str]) -> None:
    other = unique("N")
    await OnlineStore(client, VIEWS, DAY_S).write(PLANE, [row(other, {"delay": -3})])
    by_next = f"{PLANE.name}@next.delay"
    found = await reader_of(client).read([DELAY, by_next], keys | {"next": other}, NEVER)
    assert {ref: value.value for ref, value in found.values.items()} == {DELAY: 12, by_next: -3}
    assert (found.cost.reads, found.cost.round_trips) == (2, 1)


async def test_a_passed_deadline_asks_nothing(client: Redis, keys: dict[str, str]) -> None:
    found = await reader_of(client).read(REFS, keys, Deadline.after(-1.0))
    assert is_all_missing(found, "deadline")
    assert found.cost == ReadCost()


async def test_a_server_killed_mid_use_is_missing_with_a_failure_and_works_when_back(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url))
    store, reader = OnlineStore(client, VIEWS, DAY_S), reader_of(client)
    await store.write(PLANE, [row("N1", {"delay": 1})])
    assert (await reader.read([DELAY], {"plane": "N1"}, NEVER)).values[DELAY].value == 1
    own_server.kill()
    for deadline in (Deadline.after(LONG_S), NEVER):
        found = await reader.read([DELAY], {"plane": "N1"}, deadline)
        assert is_all_missing(found, "store_unavailable")
        assert found.cost == ReadCost(reads=1, round_trips=1)
    own_server.start()
    assert (await reader.read([DELAY], {"plane": "N1"}, NEVER)).failure is None
    await store.write(PLANE, [row("N1", {"delay": 2})])
    assert (await reader.read([DELAY], {"plane": "N1"}, NEVER)).values[DELAY].value == 2
    await client.aclose()


async def test_a_read_in_flight_when_the_server_dies_is_answered(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url), io_timeout_s=LONG_S)
    reader = reader_of(client)
    await reader.read([DELAY], {"plane": "N1"}, NEVER)
    own_server.stall()
    reads = [asyncio.create_task(reader.read([DELAY], {"plane": "N1"}, NEVER)) for _ in range(5)]
    await asyncio.sleep(0)
    own_server.kill()
    assert all(is_all_missing(found, "store_unavailable") for found in await asyncio.gather(*reads))
    await client.aclose()


async def test_a_stalled_server_is_left_at_the_deadline(own_server: Valkey) -> None:
    """The library's own timeout is an hour here: only the deadline can end these reads."""
    client = connect(RedisSettings(url=own_server.url, max_connections=2), io_timeout_s=LONG_S)
    store, reader = OnlineStore(client, VIEWS, DAY_S), reader_of(client)
    await store.write(PLANE, [row(f"N{i}", {"delay": i}) for i in range(10)])
    own_server.stall()
    # two hold the pool's connections, one of them new and waiting for its greeting; the others wait for the pool
    reads = (reader.read([DELAY], {"plane": f"N{i}"}, always_left(0.05)) for i in range(10))
    for found in await asyncio.gather(*reads):
        assert is_all_missing(found, "deadline")
        assert found.cost == ReadCost(reads=1, round_trips=1)
    own_server.resume()
    for i in range(10):
        assert (await reader.read([DELAY], {"plane": f"N{i}"}, NEVER)).values[DELAY].value == i
    await client.aclose()


async def test_a_cancelled_read_never_answers_another(redis_url: str) -> None:
    """Cancels after every number of turns of the loop that a read can take, on a pool of one connection."""
    client = connect(RedisSettings(url=redis_url, max_connections=1))
    store, reader = OnlineStore(client, VIEWS, DAY_S), reader_of(client)
    mine, other = {"plane": unique("N")}, {"plane": unique("N")}
    await store.write(PLANE, [row(mine["plane"], {"delay": 1}), row(other["plane"], {"delay": 2})])
    num_cancelled = 0
    for turns in range(200):
        read = asyncio.create_task(reader.read([DELAY], other, NEVER))
        for _ in range(turns % 40):
            await asyncio.sleep(0)
        read.cancel()
        num_cancelled += (await asyncio.gather(read, return_exceptions=True))[0].__class__ is asyncio.CancelledError
        assert (await reader.read([DELAY], mine, NEVER)).values[DELAY].value == 1
    assert num_cancelled > 0
    await client.aclose()


async def test_a_burst_beyond_the_pool_waits_for_it(redis_url: str, keys: dict[str, str]) -> None:
    client = connect(RedisSettings(url=redis_url, max_connections=2))
    reader = reader_of(client)
    found = await asyncio.gather(*(reader.read(REFS, keys, NEVER) for _ in range(100)))
    assert {row.failure for row in found} == {None}
    await client.aclose()

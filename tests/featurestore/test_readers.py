"""Five states, one round trip, and an answer from every reader whatever became of its store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureRow, FeatureState, FeatureValue, ReadCost, entity_key
from core_engine.errors import ConfigurationError, InvalidRequest, StoreUnavailable
from core_engine.readers import FeatureReader
from core_engine.settings import RedisSettings
from featurestore.codec import RowCodec
from featurestore.connection import connect
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.keys import row_key
from featurestore.materialize import materialize
from featurestore.offline_store import OfflineStore
from featurestore.online_store import OnlineStore
from featurestore.readers import AsOfFeatureReader, OnlineFeatureReader
from tests.featurestore.rows import HOUR, NOW, make_view, row, unique, write_source
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

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(upstream)
        await asyncio.gather(turns.forward(reader, up_writer, True), turns.forward(up_reader, writer, False))

    server = await asyncio.start_unix_server(serve, listen)
    try:
        yield turns
    finally:
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


async def test_a_payload_of_another_release_is_a_failure_not_a_guess(client: Redis, keys: dict[str, str]) -> None:
    await client.hset(row_key(ROUTE, keys["route"]), "p", b"\x63newer")
    found = await reader_of(client).read(REFS, keys, NEVER)
    assert is_all_missing(found, "unreadable_payload")
    assert list(found.values) == REFS


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
    reads = (reader.read([DELAY], {"plane": f"N{i}"}, Deadline.after(0.05)) for i in range(10))
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


# the as-of reader


@pytest.fixture
def history(tmp_path: Path) -> tuple[FeatureView, FeatureView]:
    """A plane whose second row was known two hours late, and a route whose only row is four hours old."""
    plane = write_source(
        tmp_path / "plane.parquet",
        {
            "entity_key": ["N1", "N1", "N1"],
            "event_time": [NOW - 5 * HOUR, NOW - 3 * HOUR, NOW + HOUR],
            "created_time": [NOW - 5 * HOUR, NOW - HOUR, NOW + HOUR],
            "delay": [5, 3, -1],
            "gate": [None, None, "B4"],
        },
    )
    route = write_source(
        tmp_path / "route.parquet",
        {"entity_key": ["R"], "event_time": [NOW - 4 * HOUR], "created_time": [NOW - 4 * HOUR], "late_share": [0.5]},
    )
    plane_view = make_view(*PLANE.schema, path=plane, ttl_s=2 * 3600.0)
    return plane_view, make_view(*ROUTE.schema, path=route, entity="route", ttl_s=4 * 3600.0)


async def test_history_is_read_as_it_was_known(history: tuple[FeatureView, FeatureView]) -> None:
    plane, route = history
    delay, share = f"{plane.name}.delay", f"{route.name}.late_share"
    keys = {"plane": "N1", "route": "R"}
    expected = [
        (NOW - 6 * HOUR, None, FeatureState.MISSING, None),
        (NOW - 3 * HOUR, 5, FeatureState.PRESENT, 7200.0),  # the newer row was not known yet
        (NOW - 2 * HOUR, 5, FeatureState.STALE, 10_800.0),
        (NOW - HOUR, 3, FeatureState.PRESENT, 7200.0),
        (NOW, 3, FeatureState.STALE, 10_800.0),
    ]
    for as_of, value, state, age_s in expected:
        found = await AsOfFeatureReader(OfflineStore(history), as_of).read([delay, share], keys, NEVER)
        assert found.values[delay] == FeatureValue(value, state, age_s)
    assert found.values[share] == FeatureValue(0.5, FeatureState.PRESENT, 14_400.0)
    assert found.cost == ReadCost(reads=2, hits=2, round_trips=2)


async def test_both_readers_find_the_same(client: Redis, history: tuple[FeatureView, FeatureView]) -> None:
    refs = [f"{view.name}.{field.name}" for view in history for field in view.schema]
    store = OnlineStore(client, history, DAY_S)
    for view in history:
        await materialize(view, store, NOW)
    online: FeatureReader = OnlineFeatureReader(store, history, clock=lambda: NOW)
    offline: FeatureReader = AsOfFeatureReader(OfflineStore(history), NOW)
    for keys in ({"plane": "N1", "route": "R"}, {"plane": "N2", "route": "R"}, {"plane": "N1", "route": "unknown"}):
        served, replayed = [await reader.read(refs, keys, NEVER) for reader in (online, offline)]
        assert served.values == replayed.values
        assert (served.cost.reads, served.cost.hits) == (replayed.cost.reads, replayed.cost.hits)


async def test_the_as_of_reader_keeps_the_contract(history: tuple[FeatureView, FeatureView]) -> None:
    reader = AsOfFeatureReader(OfflineStore(history), NOW)
    delay = f"{history[0].name}.delay"
    assert is_all_missing(await reader.read([delay], {"plane": "N1"}, Deadline.after(-1.0)), "deadline")
    with pytest.raises(InvalidRequest, match="entity plane"):
        await reader.read([delay], {}, NEVER)
    with pytest.raises(ConfigurationError, match="not declared"):
        await reader.read(["weather.wind"], {}, NEVER)
    with pytest.raises(InvalidRequest, match=r"as_of = .*timezone"):
        AsOfFeatureReader(OfflineStore(history), datetime(2013, 1, 1))


class LostStore(OfflineStore):
    """Its disk went away."""

    def known_row(self, name: str, key: str, as_of_us: int) -> None:
        raise StoreUnavailable("the mount is gone")


async def test_a_lost_history_is_missing_with_a_failure(history: tuple[FeatureView, FeatureView]) -> None:
    found = await AsOfFeatureReader(LostStore(history), NOW).read([f"{history[0].name}.delay"], {"plane": "N1"}, NEVER)
    assert is_all_missing(found, "store_unavailable")

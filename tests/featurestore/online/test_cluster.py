"""A real cluster of three nodes: everything that works on one server works here, and what moves is followed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import UnixDomainSocketConnection
from redis.crc import key_slot

from core_engine.contracts import Deadline, ReadCost
from core_engine.errors import ConfigurationError, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureView
from featurestore.keys import row_key
from featurestore.online.cluster import Address, ClusterLink
from featurestore.online.connection import StoreClient, connect
from featurestore.online.fetched import StoredPayload
from featurestore.online.link import NodeLink
from featurestore.online.read_cache import ReadCache
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore, WriteResult
from tests.featurestore.online.test_reader import is_all_missing
from tests.featurestore.online.valkey_cluster import NUM_SLOTS, ValkeyCluster
from tests.featurestore.rows import HOUR, NOW, make_view, row, unique
from tests.featurestore.valkey import Valkey

DAY_S = 86_400.0
NEVER = Deadline.never()
KEYS = [f"N{i}" for i in range(60)]  # enough that every node owns some


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        cluster = ValkeyCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()


@pytest.fixture
async def client(cluster: ValkeyCluster) -> AsyncIterator[StoreClient]:
    client = connect(RedisSettings(url=cluster.url, cluster=True))
    yield client
    await client.aclose()


def reader_of(client: StoreClient, *views: FeatureView) -> OnlineFeatureReader:
    return OnlineFeatureReader(OnlineStore(client, views, DAY_S), views, clock=lambda: NOW)


async def test_rows_of_all_nodes_are_written_and_read_with_one_trip_to_each(client: StoreClient) -> None:
    view = make_view()
    store = OnlineStore(client, [view], DAY_S)
    rows = [row(key, {"delay": i}) for i, key in enumerate(KEYS)]
    assert await store.write(view, rows) == WriteResult(written=len(KEYS))
    assert await store.write(view, rows) == WriteResult(kept=len(KEYS))
    table = await reader_of(client, view).read_many([f"{view.name}.delay"], [{"plane": key} for key in KEYS], NEVER)
    assert table.column(f"{view.name}.delay") == list(range(len(KEYS)))
    assert (table.cost.reads, table.cost.hits, table.cost.round_trips) == (len(KEYS), len(KEYS), 3)


async def test_all_views_of_an_entity_are_one_trip(client: StoreClient) -> None:
    views, key = [make_view() for _ in range(5)], unique("plane")
    store = OnlineStore(client, views, DAY_S)
    for view in views:
        await store.write(view, [row(key, {"delay": 1})])
    found = await reader_of(client, *views).read([f"{view.name}.delay" for view in views], {"plane": key}, NEVER)
    assert {value.value for value in found.values.values()} == {1}
    assert (found.cost.reads, found.cost.round_trips) == (5, 1)


async def test_nodes_without_the_function_are_each_given_it(client: StoreClient, cluster: ValkeyCluster) -> None:
    view = make_view()
    for port in cluster.ports:
        cluster.node(port).function_flush()
    rows = [row(key, {"delay": 1}) for key in KEYS]
    assert await OnlineStore(client, [view], DAY_S).write(view, rows) == WriteResult(written=len(KEYS))


def slot_of(view: FeatureView, key: str) -> int:
    slot: int = key_slot(row_key(view, key).encode())
    return slot


def begin_move(cluster: ValkeyCluster, key: str) -> None:
    """The slot of `key` is on its way to another node, and everything in it is there already."""
    slot, source, target = cluster.plan_move(key)
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.execute_command("CLUSTER MYID"))
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.execute_command("CLUSTER MYID"))
    held = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    port = target.connection_pool.connection_kwargs["port"]
    source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *held)


def finish_move(cluster: ValkeyCluster, key: str) -> None:
    slot, source, target = cluster.plan_move(key)
    for node in (target, source):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.execute_command("CLUSTER MYID"))


async def test_a_slot_that_moves_is_followed(client: StoreClient, cluster: ValkeyCluster) -> None:
    view, key = make_view(), unique("moving")
    store, reads = OnlineStore(client, [view], DAY_S), [(view, each) for each in (key, *KEYS)]
    await store.write(view, [row(each, {"delay": 1}) for _, each in reads])
    trips = []
    for step in (begin_move, finish_move):
        step(cluster, row_key(view, key))
        for asked in (reads, reads[:1]):
            fetched = await store.fetch(asked)
            assert all(isinstance(each, StoredPayload) for each in fetched.rows)
            trips.append(fetched.cost.round_trips)
        assert await store.write(view, [row(key, {"delay": 2}, NOW + len(trips) * HOUR)]) == WriteResult(written=1)
    assert trips == [4, 2, 4, 1]  # asked on while it moves, moved for good, known to have moved


async def test_a_node_that_is_lost_costs_its_own_entities_only() -> None:
    view = make_view()
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        cluster = ValkeyCluster(Path(folder))
        try:
            cluster.start()
            client = connect(RedisSettings(url=cluster.url, cluster=True))
            store, ref = OnlineStore(client, [view], DAY_S), f"{view.name}.delay"
            await store.write(view, [row(key, {"delay": 1}) for key in KEYS])
            await store.fetch([(view, key) for key in KEYS])
            cluster.stop_node(0)  # the one that the URL names: another has to tell who owns what
            lost = next(key for key in KEYS if slot_of(view, key) < NUM_SLOTS // 3)
            kept = next(key for key in KEYS if slot_of(view, key) > NUM_SLOTS * 2 // 3)
            reader = reader_of(client, view)
            for _ in range(2):
                assert is_all_missing(await reader.read([ref], {"plane": lost}, NEVER), "store_unavailable")
                assert (await reader.read([ref], {"plane": kept}, NEVER)).values[ref].value == 1
            with pytest.raises(StoreUnavailable):
                await store.write(view, [row(lost, {"delay": 2}, NOW + HOUR)])
            await client.aclose()
        finally:
            cluster.kill()


async def test_a_change_is_told_by_whichever_node_holds_the_row(client: StoreClient, cluster: ValkeyCluster) -> None:
    view = make_view()
    cache = ReadCache(1 << 20, ttl_s=DAY_S)
    cached, other = OnlineStore(client, [view], DAY_S, cache=cache), unique("other")
    reads = [(view, key) for key in KEYS]
    await cached.fetch(reads)
    writer = connect(RedisSettings(url=cluster.url, cluster=True))
    await OnlineStore(writer, [view], DAY_S).write(view, [row(key, {"delay": 1}) for key in KEYS])
    await cached.fetch([(view, f"{other}{i}") for i in range(60)])  # from every node, after what it had to tell
    fetched = await cached.fetch(reads)
    assert all(isinstance(each, StoredPayload) for each in fetched.rows)
    assert fetched.cost.cached == 0
    assert (await cached.fetch(reads)).cost == ReadCost(cached=len(KEYS))
    await writer.aclose()


async def test_a_server_that_is_no_cluster_is_named(own_server: Valkey) -> None:
    alone = NodeLink(lambda: UnixDomainSocketConnection(path=own_server.url.removeprefix("unix://")), 5.0)
    link = ClusterLink(lambda _: alone, Address("alone", 1))
    with pytest.raises(StoreUnavailable, match="alone:1 is no cluster node: ERR This instance has cluster support"):
        await link.ask([("PING", "key")])
    await link.aclose()


async def test_a_url_that_no_cluster_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="redis cluster: its url must name a host and a port"):
        connect(RedisSettings(url="unix:///nowhere.sock", cluster=True))
    with pytest.raises(ConfigurationError, match="no database but 0"):
        connect(RedisSettings(url="redis://127.0.0.1:6379/3", cluster=True))


async def test_concurrent_reads_discover_the_cluster_together(cluster: ValkeyCluster) -> None:
    view = make_view()
    client = connect(RedisSettings(url=cluster.url, cluster=True))
    store = OnlineStore(client, [view], DAY_S)
    found = await asyncio.gather(*(store.fetch([(view, key)]) for key in KEYS))
    assert all(each.rows == [None] for each in found)
    await client.aclose()


async def test_the_memory_of_a_view_is_that_of_all_nodes(client: StoreClient) -> None:
    view = make_view()
    store = OnlineStore(client, [view], DAY_S)
    await store.write(view, [row(key, {"delay": 1}) for key in KEYS])
    found = await store.memory(view)
    assert (found.entities, found.keys) == (len(KEYS), len(KEYS))
    assert found.bytes > 0

"""One load per row however many ask, nobody's cancellation is another's, and on a real server a change is seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureState, ReadCost
from core_engine.errors import StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.codec import UnreadablePayload
from featurestore.keys import row_key
from featurestore.online.cached_reads import CachedReads
from featurestore.online.connection import StoreClient, connect
from featurestore.online.fetched import Fetched, Read, Stored, StoredPayload
from featurestore.online.read_cache import ReadCache
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.featurestore.online.test_read_cache import STALE_S, TTL_S, Clock, make_cache
from tests.featurestore.rows import HOUR, NOW, make_view, row, unique
from tests.featurestore.valkey import Valkey
from tests.featurestore.windows.oracle import window_view

DAY_S = 86_400.0
NEVER = Deadline.never()
VIEW = make_view()
A, B = (VIEW, "a"), (VIEW, "b")


class FakeRedis:
    """Holds rows by (view, key); answers when it is let. Counts what it was asked."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Stored] = {}
        self.asked: list[list[str]] = []
        self.cost = ReadCost()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_away = False

    async def load(self, reads: Sequence[Read]) -> Fetched:
        self.asked.append([key for _, key in reads])
        await self.may_answer.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        rows = [self.rows.get((view.name, key)) for view, key in reads]
        cost = ReadCost(len(reads), sum(each is not None for each in rows), 10 * len(reads), 1)
        self.cost += cost
        return Fetched(rows, cost)


@pytest.fixture
def redis() -> FakeRedis:
    redis = FakeRedis()
    redis.rows = {(VIEW.name, "a"): StoredPayload(1, b"a"), (VIEW.name, "b"): StoredPayload(1, b"b")}
    return redis


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_held_is_not_asked_for_again(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    first = await reads.fetch([A, B, (VIEW, "unknown")])
    again = await reads.fetch([A, B, (VIEW, "unknown")])
    assert first.rows == again.rows == [StoredPayload(1, b"a"), StoredPayload(1, b"b"), None]
    assert first.cost == ReadCost(3, 2, 30, 1)
    assert again.cost == ReadCost(cached=3)


async def test_what_lacks_is_asked_for_in_one_trip(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    await reads.fetch([A])
    mixed = await reads.fetch([B, A, (VIEW, "c")])
    assert redis.asked == [["a"], ["b", "c"]]
    assert mixed.rows == [StoredPayload(1, b"b"), StoredPayload(1, b"a"), None]
    assert mixed.cost == ReadCost(reads=2, hits=1, bytes=20, round_trips=1, cached=1)


async def test_requests_that_come_together_load_a_row_once(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    redis.may_answer.clear()
    asking = [asyncio.create_task(reads.fetch([A])) for _ in range(20)]
    await turns()
    redis.may_answer.set()
    found = await asyncio.gather(*asking)
    assert redis.asked == [["a"]]
    assert all(each.rows == [StoredPayload(1, b"a")] for each in found)
    assert sum((each.cost for each in found), ReadCost()) == ReadCost(1, 1, 10, 1, cached=19)


async def test_the_request_that_asked_may_go_away(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    redis.may_answer.clear()
    first = asyncio.create_task(reads.fetch([A]))
    await turns()
    second = asyncio.create_task(reads.fetch([A]))
    await turns()
    first.cancel()
    redis.may_answer.set()
    assert (await second).rows == [StoredPayload(1, b"a")]
    assert first.cancelled() or first.cancelling()
    assert redis.asked == [["a"]]


async def test_a_failure_reaches_all_that_wait_and_is_not_kept(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    redis.may_answer.clear()
    redis.is_away = True
    asking = [asyncio.create_task(reads.fetch([A])) for _ in range(3)]
    await turns()
    redis.may_answer.set()
    assert all(isinstance(e, StoreUnavailable) for e in await asyncio.gather(*asking, return_exceptions=True))
    redis.is_away = False
    assert (await reads.fetch([A])).rows == [StoredPayload(1, b"a")]


async def test_a_stale_row_is_served_at_once_and_read_again_once(redis: FakeRedis) -> None:
    clock = Clock()
    reads = CachedReads(make_cache(clock), redis.load)
    await reads.fetch([A])
    redis.rows[VIEW.name, "a"] = StoredPayload(2, b"newer")
    clock.now_s += TTL_S
    redis.may_answer.clear()
    served = [await reads.fetch([A]) for _ in range(3)]
    assert all(each == Fetched([StoredPayload(1, b"a")], ReadCost(cached=1)) for each in served)
    redis.may_answer.set()
    await turns()
    fresh = await reads.fetch([A])
    assert redis.asked == [["a"], ["a"]]
    assert fresh.rows == [StoredPayload(2, b"newer")]
    assert fresh.cost == ReadCost(1, 1, 10, 1, cached=1)  # the second reading, which nobody waited for


async def test_a_stale_row_that_cannot_be_read_again_lives_to_the_end_of_its_window(redis: FakeRedis) -> None:
    clock = Clock()
    reads = CachedReads(make_cache(clock), redis.load)
    await reads.fetch([A])
    redis.is_away = True
    clock.now_s += TTL_S
    with structlog.testing.capture_logs() as lines:
        assert (await reads.fetch([A])).rows == [StoredPayload(1, b"a")]
        await turns()
    assert [line["event"] for line in lines] == ["feature_cache_not_refreshed"]
    clock.now_s += STALE_S
    with pytest.raises(StoreUnavailable):
        await reads.fetch([A])


async def test_what_cannot_be_read_is_not_kept(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    redis.rows[VIEW.name, "a"] = UnreadablePayload("broken")
    assert isinstance((await reads.fetch([A])).rows[0], UnreadablePayload)
    redis.rows[VIEW.name, "a"] = StoredPayload(2, b"mended")
    assert (await reads.fetch([A])).rows == [StoredPayload(2, b"mended")]


async def test_windowed_views_pass_by(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    windowed = window_view()
    for _ in range(2):
        await reads.fetch([A, (windowed, "a")])
    assert redis.asked == [["a", "a"], ["a"]]


async def test_a_row_asked_for_twice_in_one_request_is_one_row(redis: FakeRedis) -> None:
    reads = CachedReads(make_cache(Clock()), redis.load)
    assert (await reads.fetch([A, A])).rows == [StoredPayload(1, b"a")] * 2
    assert (await reads.fetch([A, A])).cost == ReadCost(cached=2)


async def test_costs_add_up_to_what_redis_was_asked(redis: FakeRedis) -> None:
    clock = Clock()
    reads = CachedReads(make_cache(clock), redis.load)
    total = ReadCost()
    for i in range(60):
        clock.now_s += 2.0
        for each in await asyncio.gather(*(reads.fetch([A, B][: 1 + (i + j) % 2]) for j in range(3))):
            total += each.cost
        await turns()
    clock.now_s += TTL_S + STALE_S
    total += (await reads.fetch([A])).cost  # whatever was read again for nobody
    assert (total.reads, total.hits, total.bytes, total.round_trips) == (
        redis.cost.reads,
        redis.cost.hits,
        redis.cost.bytes,
        redis.cost.round_trips,
    )


# on a real server


@pytest.fixture
async def door(redis_url: str) -> AsyncIterator[StoreClient]:
    client = connect(RedisSettings(url=redis_url))
    yield client
    await client.aclose()


async def test_a_change_by_another_process_is_seen_at_the_next_read(client: Redis, door: StoreClient) -> None:
    view, key = make_view(), unique("plane")
    writer, cache = OnlineStore(client, [view], DAY_S), ReadCache(1 << 20, ttl_s=DAY_S)
    cached = OnlineStore(door, [view], DAY_S, cache=cache)
    reader, ref = OnlineFeatureReader(cached, [view]), f"{view.name}.delay"
    for value in (None, 1, 2):
        if value is not None:
            await writer.write(view, [row(key, {"delay": value}, NOW + value * HOUR / 1000)])
            await cached.fetch([(view, unique("other"))])  # comes after what the server had to tell before
        found = await reader.read([ref], {"plane": key}, NEVER)
        assert found.values[ref].value == value
        assert found.cost.reads == 1
        again = await reader.read([ref], {"plane": key}, NEVER)
        assert (again.values[ref].value, again.cost) == (value, ReadCost(cached=1))


async def test_a_later_store_of_the_client_goes_on_with_cache_and_connection(client: Redis, door: StoreClient) -> None:
    """As when a door meets a changed registry: its readers are built anew."""
    view, key, cache = make_view(), unique("plane"), ReadCache(1 << 20, ttl_s=DAY_S)
    await OnlineStore(client, [view], DAY_S).write(view, [row(key, {"delay": 1})])
    first, second = (OnlineStore(door, [view], DAY_S, cache=cache) for _ in range(2))
    found = await asyncio.gather(*(store.fetch([(view, key)]) for store in (first, second)))
    assert found[0].rows == found[1].rows
    assert (await second.fetch([(view, key)])).cost == ReadCost(cached=1)
    assert door.tracked(cache.invalidated) is door.tracked(cache.invalidated)
    await OnlineStore(client, [view], DAY_S).write(view, [row(key, {"delay": 2}, NOW + HOUR)])
    await first.fetch([(view, unique("other"))])  # comes after what the server had to tell before
    assert (await second.fetch([(view, key)])).cost.reads == 1


async def test_staleness_of_a_cached_value_is_judged_anew_on_each_read(door: StoreClient) -> None:
    view, key, now = make_view(ttl_s=3600.0), unique("plane"), [NOW]
    store = OnlineStore(door, [view], DAY_S, cache=ReadCache(1 << 20, ttl_s=DAY_S))
    await store.write(view, [row(key, {"delay": 1}, NOW)])
    reader, ref = OnlineFeatureReader(store, [view], clock=lambda: now[0]), f"{view.name}.delay"
    states = []
    for _ in range(3):
        found = await reader.read([ref], {"plane": key}, NEVER)
        states.append((found.values[ref].state, found.values[ref].age_s, found.cost.cached))
        now[0] += HOUR
    assert states == [
        (FeatureState.PRESENT, 0.0, 0),
        (FeatureState.PRESENT, 3600.0, 1),
        (FeatureState.STALE, 7200.0, 1),
    ]


async def test_a_lost_connection_empties_the_cache(own_server: Valkey) -> None:
    view = make_view()
    client = connect(RedisSettings(url=own_server.url))
    cache = ReadCache(1 << 20, ttl_s=DAY_S)
    store = OnlineStore(client, [view], DAY_S, cache=cache)
    await store.write(view, [row("N1", {"delay": 1})])
    await store.fetch([(view, "N1")])
    assert len(cache) == 1
    own_server.kill()
    while len(cache):  # noqa: ASYNC110 - the loop offers no event for the end of a connection
        await asyncio.sleep(0)
    own_server.start()
    assert (await store.fetch([(view, "N1")])).rows == [None]
    await client.aclose()


async def test_a_server_that_tells_nothing_leaves_it_to_the_ttl_and_says_so(own_server: Valkey) -> None:
    view, clock = make_view(), Clock()
    client: Any = connect(RedisSettings(url=own_server.url))
    await client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|tracking"])
    store = OnlineStore(client, [view], DAY_S, cache=make_cache(clock, stale_s=0.0))
    await store.write(view, [row("N1", {"delay": 1})])
    with structlog.testing.capture_logs() as lines:
        before = (await store.fetch([(view, "N1")])).rows
    assert [line["event"] for line in lines] == ["feature_cache_untracked"]
    await client.delete(row_key(view, "N1"))
    assert (await store.fetch([(view, "N1")])).rows == before
    clock.now_s += TTL_S
    assert (await store.fetch([(view, "N1")])).rows == [None]
    await client.aclose()

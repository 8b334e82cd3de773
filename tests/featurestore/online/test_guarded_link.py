"""A store that does not answer costs a few reads their wait; once it is back, it is asked no more than before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis as BlockingRedis

from core_engine.breaker import Breaker, BreakerState
from core_engine.contracts import Deadline
from core_engine.errors import StoreBreakerOpen, StoreUnavailable
from core_engine.settings import RedisSettings
from featurestore.online.connection import ReadGuard, StoreClient, connect
from featurestore.online.guarded_link import GuardedLink
from featurestore.online.link import Answer, Command
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from featurestore.prediction_reader import OnlinePredictionReader
from tests.featurestore.rows import make_view, row
from tests.featurestore.valkey import Valkey

VIEW = make_view(name="guarded")
REF, KEYS = f"{VIEW.name}.delay", {"plane": "N1"}
SLOW_S = 0.3  # at which a read counts as a failure; far above what a busy machine takes for one
GIVE_UP_S = 0.6
TURN_S = 0.005  # by which the breaker's clock goes on with every read, so that a slow machine probes no more often
LONG_S = 3600.0


class ScriptedLink:
    """Answers, refuses or keeps silent, as a test sets it."""

    def __init__(self) -> None:
        self.error: StoreUnavailable | None = None
        self.silence: asyncio.Event | None = None
        self.num_asked = 0

    async def ask(self, commands: Sequence[Command]) -> Answer:
        self.num_asked += 1
        if self.silence is not None:
            await self.silence.wait()
        if self.error is not None:
            raise self.error
        return Answer([b"OK"] * len(commands), 1)

    async def aclose(self) -> None: ...


def breaker() -> tuple[Breaker, list[float]]:
    now = [0.0]
    return Breaker(min_failures=2, span_s=0.0, retry_s=1.0, clock=lambda: now[0]), now


async def test_an_open_breaker_refuses_without_asking_and_a_probe_closes_it() -> None:
    link, (guard, now) = ScriptedLink(), breaker()
    guarded = GuardedLink(link, guard, LONG_S)
    link.error = StoreUnavailable("away")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            await guarded.ask([("GET", "k")])
    with pytest.raises(StoreBreakerOpen):
        await guarded.ask([("GET", "k")])
    assert link.num_asked == 2
    link.error, now[0] = None, 1.0
    assert (await guarded.ask([("GET", "k")])).replies == [b"OK"]
    assert guard.state is BreakerState.CLOSED


async def test_silence_is_a_failure_though_nobody_has_given_up_yet() -> None:
    link, (guard, _) = ScriptedLink(), breaker()
    link.silence = asyncio.Event()
    guarded = GuardedLink(link, guard, slow_s=0.0)
    reads = [asyncio.create_task(guarded.ask([("GET", "k")])) for _ in range(2)]
    await passes(10)
    assert guard.state is BreakerState.OPEN
    assert not any(read.done() for read in reads)
    link.silence.set()
    assert [answer.replies for answer in await asyncio.gather(*reads)] == [[b"OK"], [b"OK"]]
    assert guard.state is BreakerState.OPEN  # late answers of before do not close it: a probe does


async def test_a_read_that_is_given_up_early_says_nothing_of_the_store() -> None:
    link, (guard, _) = ScriptedLink(), breaker()
    link.silence = asyncio.Event()
    guarded = GuardedLink(link, guard, LONG_S)
    for _ in range(50):
        read = asyncio.create_task(guarded.ask([("GET", "k")]))
        await asyncio.sleep(0)
        read.cancel()
        await asyncio.gather(read, return_exceptions=True)
    assert guard.state is BreakerState.CLOSED


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- a real server, stopped and killed


@dataclass
class Store:
    client: StoreClient
    now_s: float = 0.0

    async def failures(self, count: int, patience_s: float = LONG_S) -> list[str | None]:
        """`count` reads, one after the other as fast as they are answered."""
        reader, found = OnlineFeatureReader(OnlineStore(self.client, [VIEW], 86_400.0), [VIEW]), list[str | None]()
        for _ in range(count):
            found.append((await reader.read([REF], KEYS, Deadline.after(patience_s))).failure)
            self.now_s += TURN_S
        return found

    async def until_answered(self) -> None:
        while await self.failures(1, GIVE_UP_S) != [None]:
            pass

    async def num_reads(self) -> int:
        administration: Any = self.client
        stats = await administration.info("commandstats")
        return int(stats.get("cmdstat_hmget", {"calls": 0})["calls"])


@pytest.fixture
async def store(own_server: Valkey) -> AsyncIterator[Store]:
    guarding = Breaker(min_failures=3, span_s=1.5 * TURN_S, retry_s=400 * TURN_S, clock=lambda: made.now_s)
    made = Store(connect(RedisSettings(url=own_server.url), guard=ReadGuard(guarding, SLOW_S)))
    await OnlineStore(made.client, [VIEW], 86_400.0).write(VIEW, [row("N1", {"delay": 12})])
    yield made
    await made.client.aclose()


async def test_an_answer_that_a_busy_loop_has_let_lie_is_no_failure(own_server: Valkey, store: Store) -> None:
    """The loop stands still past `slow_s`, until the server has certainly answered: it was the loop that was slow."""
    guard = Breaker(min_failures=1, span_s=0.0)
    guarded = GuardedLink(store.client.writes, guard, slow_s=0.0)
    with BlockingRedis.from_url(own_server.url) as other:
        for _ in range(50):
            read = asyncio.create_task(guarded.ask([("ECHO", "x")]))
            await asyncio.sleep(0)
            assert [other.ping() for _ in range(3)] == [True] * 3
            assert (await read).replies == [b"x"]
            assert guard.state is BreakerState.CLOSED


async def test_a_stopped_server_is_asked_by_a_few_and_by_no_more_than_before_once_it_runs(
    own_server: Valkey, store: Store
) -> None:
    assert set(await store.failures(20)) == {None}
    before = await store.num_reads()
    own_server.stall()
    found = await store.failures(2000, GIVE_UP_S)
    assert found.count("breaker_open") > 1900
    assert set(found) == {"deadline", "breaker_open"}
    own_server.resume()
    await store.until_answered()
    assert set(await store.failures(200)) == {None}
    asked = await store.num_reads() - before  # what was sent meanwhile is carried out now: also that is a stampede
    assert 200 <= asked <= 2 * 200


async def test_a_killed_server_is_found_again_and_not_overrun(own_server: Valkey, store: Store) -> None:
    own_server.kill()
    found = await store.failures(2000)
    assert "breaker_open" in found
    assert set(found) <= {"store_unavailable", "breaker_open"}
    own_server.start()
    await store.until_answered()
    readers = 50
    assert all(set(each) == {None} for each in await asyncio.gather(*(store.failures(4) for _ in range(readers))))
    assert await store.num_reads() <= 2 * 4 * readers
    administration: Any = store.client
    assert len(await administration.client_list()) <= 4  # reads, its hedge, administration, and the writes' of before


async def test_predictions_are_behind_the_same_breaker(own_server: Valkey, store: Store) -> None:
    reader = OnlinePredictionReader(store.client)
    assert await reader.lookup("delay:1", "N1", Deadline.never()) is None
    own_server.kill()
    while "breaker_open" not in await store.failures(1):
        pass
    with pytest.raises(StoreBreakerOpen):
        await reader.lookup("delay:1", "N1", Deadline.never())


async def test_without_a_guard_nothing_is_refused(own_server: Valkey) -> None:
    store = Store(connect(RedisSettings(url=own_server.url)))
    own_server.kill()
    assert set(await store.failures(200)) == {"store_unavailable"}
    assert store.client.hedge is None
    await store.client.aclose()

"""A store that does not answer costs a few reads their wait; once it is back, it is asked no more than before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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
SLOW_S = 0.05  # at which a read counts as a failure
GIVE_UP_S = 0.1
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


@pytest.fixture
async def store(own_server: Valkey) -> AsyncIterator[StoreClient]:
    guard = ReadGuard(Breaker(min_failures=3, span_s=0.01, retry_s=0.1), SLOW_S)
    client = connect(RedisSettings(url=own_server.url), guard=guard)
    await OnlineStore(client, [VIEW], 86_400.0).write(VIEW, [row("N1", {"delay": 12})])
    yield client
    await client.aclose()


async def failures(client: StoreClient, count: int, patience_s: float = LONG_S) -> list[str | None]:
    """`count` reads, one after the other as fast as they are answered."""
    reader = OnlineFeatureReader(OnlineStore(client, [VIEW], 86_400.0), [VIEW])
    return [(await reader.read([REF], KEYS, Deadline.after(patience_s))).failure for _ in range(count)]


async def test_an_answer_that_a_busy_loop_has_let_lie_is_no_failure(own_server: Valkey, store: StoreClient) -> None:
    """The loop stands still past `slow_s`, until the server has certainly answered: it was the loop that was slow."""
    guard = Breaker(min_failures=1, span_s=0.0)
    guarded = GuardedLink(store.writes, guard, slow_s=0.0)
    with BlockingRedis.from_url(own_server.url) as other:
        for _ in range(50):
            read = asyncio.create_task(guarded.ask([("ECHO", "x")]))
            await asyncio.sleep(0)
            assert [other.ping() for _ in range(3)] == [True] * 3
            assert (await read).replies == [b"x"]
            assert guard.state is BreakerState.CLOSED


async def until_answered(client: StoreClient) -> int:
    """Reads until one is answered; how many that took."""
    count = 1
    while (await failures(client, 1, GIVE_UP_S)) != [None]:
        count += 1
    return count


async def num_reads(client: Any) -> int:
    stats = await client.info("commandstats")
    return int(stats.get("cmdstat_hmget", {"calls": 0})["calls"])


async def test_a_stopped_server_is_asked_by_a_few_and_by_no_more_than_before_once_it_runs(
    own_server: Valkey, store: StoreClient
) -> None:
    assert set(await failures(store, 20)) == {None}
    before = await num_reads(store)
    own_server.stall()
    found = await failures(store, 2000, GIVE_UP_S)
    assert found.count("breaker_open") > 1900
    assert set(found) == {"deadline", "breaker_open"}
    own_server.resume()
    await until_answered(store)
    assert set(await failures(store, 200)) == {None}
    asked = await num_reads(store) - before  # what was sent meanwhile is carried out now: also that is a stampede
    assert 200 <= asked <= 2 * 200


async def test_a_killed_server_is_found_again_and_not_overrun(own_server: Valkey, store: StoreClient) -> None:
    own_server.kill()
    found = await failures(store, 2000)
    assert "breaker_open" in found
    assert set(found) <= {"store_unavailable", "breaker_open"}
    own_server.start()
    await until_answered(store)
    readers = 50
    assert all(set(each) == {None} for each in await asyncio.gather(*(failures(store, 4) for _ in range(readers))))
    assert await num_reads(store) <= 2 * 4 * readers
    administration: Any = store
    assert len(await administration.client_list()) <= 4  # reads, its hedge, administration, and the writes' of before


async def test_predictions_are_behind_the_same_breaker(own_server: Valkey, store: StoreClient) -> None:
    reader = OnlinePredictionReader(store)
    assert await reader.lookup("delay:1", "N1", Deadline.never()) is None
    own_server.kill()
    while "breaker_open" not in await failures(store, 1):
        pass
    with pytest.raises(StoreBreakerOpen):
        await reader.lookup("delay:1", "N1", Deadline.never())


async def test_without_a_guard_nothing_is_refused(own_server: Valkey) -> None:
    client = connect(RedisSettings(url=own_server.url))
    own_server.kill()
    assert set(await failures(client, 200)) == {"store_unavailable"}
    assert client.hedge is None
    await client.aclose()

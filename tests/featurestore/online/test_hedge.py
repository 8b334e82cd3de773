"""A slow read is asked a second time, on another connection, within a budget; whichever answers first is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.asyncio import UnixDomainSocketConnection

from core_engine.errors import StoreUnavailable
from featurestore.online.hedge import Hedge
from featurestore.online.link import PACK, Answer, Command, NodeLink
from tests.featurestore.valkey import Valkey

LONG_S = 3600.0  # no test waits for this
LOOKED = 32  # reads after which a quantile is known


class HeldLink:
    """The second connection: answers when a test says so."""

    def __init__(self, error: StoreUnavailable | None = None) -> None:
        self.asked: list[Sequence[Command]] = []
        self.began, self.release = asyncio.Event(), asyncio.Event()
        self._error = error
        self.is_closed = False

    async def ask(self, commands: Sequence[Command]) -> Answer:
        self.asked.append(commands)
        self.began.set()
        await self.release.wait()
        if self._error is not None:
            raise self._error
        return Answer([b"second"] * len(commands), 1)

    async def aclose(self) -> None:
        self.is_closed = True


def known(hedge: Hedge, took_s: float = 0.0) -> Hedge:
    """As after reads that took `took_s` each, with a whole budget."""
    for _ in range(LOOKED):
        hedge.times.add(took_s)
    hedge._budget = 1.0
    return hedge


def question() -> asyncio.Future[list[object]]:
    return asyncio.get_running_loop().create_future()


async def test_while_nothing_is_known_nothing_is_asked_twice() -> None:
    second = HeldLink()
    hedge, answered = Hedge(second), question()
    watch = hedge.watch(answered, [("GET", "k")])
    assert watch._timer is None
    watch.end()
    assert second.asked == []


async def test_the_first_of_two_answers_is_taken_and_both_are_counted() -> None:
    second = HeldLink()
    second.release.set()
    hedge, answered = known(Hedge(second)), question()
    watch = hedge.watch(answered, [("GET", "k"), ("GET", "l")])
    assert await answered == [b"second", b"second"]
    watch.end()
    assert (watch.hedges, hedge.num_hedges, hedge.num_won) == (1, 1, 1)


async def test_a_first_answer_that_comes_before_the_second_stands() -> None:
    second = HeldLink()
    hedge, answered = known(Hedge(second)), question()
    watch = hedge.watch(answered, [("GET", "k")])
    await second.began.wait()
    answered.set_result([b"first"])
    second.release.set()
    await asyncio.gather(*hedge._tasks)
    assert await answered == [b"first"]
    watch.end()
    assert (watch.hedges, hedge.num_won) == (1, 0)


async def test_a_second_that_fails_leaves_the_first_to_answer() -> None:
    second = HeldLink(StoreUnavailable("away"))
    second.release.set()
    hedge, answered = known(Hedge(second)), question()
    hedge.watch(answered, [("GET", "k")])
    await second.began.wait()
    await asyncio.gather(*hedge._tasks)
    assert not answered.done()


async def test_a_read_that_was_given_up_is_not_asked_again() -> None:
    hedge, answered = known(Hedge(HeldLink())), question()
    answered.cancel()
    assert not hedge.ask_again(answered, [("GET", "k")])


@pytest.mark.parametrize("share", [0.05, 0.25])
async def test_hedges_stay_within_their_share_of_reads_and_their_burst(share: float) -> None:
    hedge = Hedge(HeldLink(), share=share, burst=3.0)
    num_reads, sent = 1000, 0
    for _ in range(num_reads):
        answered = question()
        hedge.watch(answered, [("GET", "k")]).end()
        sent += hedge.ask_again(answered, [("GET", "k")])
    assert sent == pytest.approx(share * num_reads, abs=1)
    for _ in range(10 * num_reads):
        hedge.watch(question(), [("GET", "k")]).end()
    assert sum(hedge.ask_again(question(), [("GET", "k")]) for _ in range(100)) == 3
    await hedge.aclose()


async def test_closing_ends_what_is_on_its_way() -> None:
    second = HeldLink()
    hedge = known(Hedge(second))
    assert hedge.ask_again(question(), [("GET", "k")])
    await second.began.wait()
    await hedge.aclose()
    assert (second.is_closed, len(hedge._tasks)) == (True, 0)


# -- on a real server


@pytest.fixture
async def hedged(own_server: Valkey) -> AsyncIterator[NodeLink]:
    """A link whose every read is late, as its hedge knows them."""
    path = own_server.url.removeprefix("unix://")

    def make() -> UnixDomainSocketConnection:
        return UnixDomainSocketConnection(path=path, protocol=3, socket_timeout=LONG_S)

    hedge = known(Hedge(NodeLink(make, LONG_S), share=1.0))
    link = NodeLink(make, LONG_S, hedging=hedge)
    await link.ask([("PING",)])
    yield link
    await link.aclose()


async def test_a_read_behind_a_slow_one_is_answered_by_the_other_connection(hedged: NodeLink) -> None:
    """BLPOP holds the first connection until somebody pushes, which here happens last."""
    assert hedged._wire is not None
    blocked = hedged._wire.ask(PACK(("BLPOP", "never", 0)), 1)  # not by `ask`, which would have it block the other too
    answer = await hedged.ask([("ECHO", "soon")])
    assert (answer.replies, answer.round_trips, answer.hedges) == ([b"soon"], 2, 1)
    assert not blocked.done()
    blocked.cancel()


async def test_replies_that_nobody_waits_for_are_never_taken_for_others(hedged: NodeLink) -> None:
    answers = await asyncio.gather(*(hedged.ask([("ECHO", str(i))]) for i in range(500)))
    assert [answer.replies for answer in answers] == [[str(i).encode()] for i in range(500)]

"""One connection for all: replies meet their own questions, silence ends, and what is lost is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import UnixDomainSocketConnection
from redis.exceptions import ResponseError

from core_engine.errors import StoreUnavailable
from featurestore.online.link import Answer, NodeLink
from tests.featurestore.rows import unique
from tests.featurestore.valkey import Valkey

LONG_S = 3600.0  # no test waits for this


def link_to(url: str, patience_s: float = LONG_S) -> NodeLink:
    path = url.removeprefix("unix://")
    return NodeLink(lambda: UnixDomainSocketConnection(path=path, protocol=3, socket_timeout=patience_s), patience_s)


@pytest.fixture
async def link(own_server: Valkey) -> AsyncIterator[NodeLink]:
    link = link_to(own_server.url)
    yield link
    await link.aclose()


async def test_replies_come_in_the_order_of_the_commands_a_refusal_in_its_place(link: NodeLink) -> None:
    answer = await link.ask([("SET", "k", 1), ("HGET", "k", "f"), ("GET", b"k"), ("HGETALL", "nothing")])
    ok, refused, value, empty = answer.replies
    assert (ok, value, empty, answer.round_trips) == (b"OK", b"1", {}, 1)
    assert isinstance(refused, ResponseError)
    assert str(refused).startswith("WRONGTYPE")


async def test_no_commands_ask_nothing(link: NodeLink) -> None:
    assert await link.ask([]) == Answer([], 0)


async def test_many_at_once_each_get_their_own(link: NodeLink) -> None:
    async def echoed(i: int) -> list[Any]:
        return (await link.ask([("ECHO", f"{i}.{j}") for j in range(i % 7 + 1)])).replies

    found = await asyncio.gather(*(echoed(i) for i in range(300)))
    assert found == [[f"{i}.{j}".encode() for j in range(i % 7 + 1)] for i in range(300)]


async def test_a_reply_larger_than_any_buffer_arrives_whole(link: NodeLink) -> None:
    large = bytes(range(256)) * 40_000  # 10 MB
    answers = await asyncio.gather(*(link.ask([("ECHO", large), ("ECHO", str(i))]) for i in range(3)))
    assert [each.replies for each in answers] == [[large, str(i).encode()] for i in range(3)]


async def test_requests_that_come_first_share_one_connection(own_server: Valkey, link: NodeLink) -> None:
    replies = await asyncio.gather(*(link.ask([("CLIENT", "ID")]) for _ in range(20)))
    assert len({each.replies[0] for each in replies}) == 1


async def test_a_server_that_says_nothing_is_given_up_after_the_patience(own_server: Valkey, link: NodeLink) -> None:
    impatient = link_to(own_server.url, patience_s=0.5)
    await impatient.ask([("PING",)])
    own_server.stall()
    with pytest.raises(StoreUnavailable):
        await impatient.ask([("PING",)])  # given up, and so is the connection that is tried after it
    await impatient.aclose()
    own_server.resume()
    assert (await link.ask([("PING",)])).replies == [b"PONG"]


async def test_a_connection_that_outlived_its_server_is_replaced_at_once(own_server: Valkey, link: NodeLink) -> None:
    key = unique("key")
    await link.ask([("SET", key, 1)])
    own_server.kill()
    own_server.start()
    assert (await link.ask([("GET", key)])).replies == [None]


async def test_a_server_that_is_not_there_is_an_error_for_all_who_ask(own_server: Valkey, link: NodeLink) -> None:
    own_server.kill()
    found = await asyncio.gather(*(link.ask([("PING",)]) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(each, StoreUnavailable) and "online store: " in str(each) for each in found)


async def test_a_cancelled_question_disturbs_nobody(link: NodeLink) -> None:
    """Given up after every number of turns that it can take; its replies are dropped, not handed on."""
    for turns in range(60):
        other = asyncio.create_task(link.ask([("ECHO", "other"), ("ECHO", "other")]))
        for _ in range(turns % 12):
            await asyncio.sleep(0)
        other.cancel()
        assert (await link.ask([("ECHO", str(turns))])).replies == [str(turns).encode()]


async def test_a_question_in_flight_at_the_end_is_answered_with_an_error(own_server: Valkey) -> None:
    link = link_to(own_server.url)
    await link.ask([("PING",)])
    own_server.stall()
    asking = asyncio.create_task(link.ask([("PING",)]))
    await asyncio.sleep(0)
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await asking
    await link.aclose()

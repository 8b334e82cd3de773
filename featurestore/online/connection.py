"""The Redis client as the feature store needs it; composition roots call this once and close it with `aclose()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core_engine.breaker import Breaker
from core_engine.errors import ConfigurationError
from core_engine.settings import RedisSettings
from featurestore.online.cluster import Address, ClusterLink
from featurestore.online.guarded_link import GuardedLink
from featurestore.online.hedge import Hedge
from featurestore.online.link import Invalidate, Link, NodeLink


@dataclass(frozen=True, slots=True)
class ReadGuard:
    """What a door, which has another answer, puts around its reads: hedges, and a breaker (`guarded_link`)."""

    breaker: Breaker
    slow_s: float  # a read that takes longer is a failure


class StoreClient(Redis):
    """The library's client, for administration, with the links that the store's own commands take.

    `reads` and `writes` are apart, so that a batch of writes delays no read. `patience_s` bounds what has no deadline:
    writes, and reads with `Deadline.never()`. In a cluster the links ask each node for what is its own; what is called
    on the client itself goes to the node of the URL. With a `guard`, all reads are behind its breaker, and those of one
    server are hedged, unless it watches their keys: what came by another connection is not watched.
    """

    def __init__(
        self,
        connection_pool: BlockingConnectionPool,
        *,
        patience_s: float = 5.0,
        is_cluster: bool = False,
        guard: ReadGuard | None = None,
    ) -> None:
        super().__init__(connection_pool=connection_pool)
        self.auto_close_connection_pool = True
        self._patience_s = patience_s
        self._is_cluster = is_cluster
        self._links: list[Link] = []
        self._tracked: dict[Invalidate, Link] = {}
        self._guard = guard
        self.hedge = Hedge(self._node(None, {})) if guard is not None and not is_cluster else None
        self.reads = self._guarded(self._link(None, self.hedge))
        self.writes = self._link(None)

    def tracked(self, invalidate: Invalidate) -> Link:
        """A link for reads whose keys the server watches, one for each `invalidate`, which is told of changes."""
        if invalidate not in self._tracked:
            self._tracked[invalidate] = self._guarded(self._link(invalidate))
        return self._tracked[invalidate]

    async def primaries(self) -> Sequence[Link]:
        """A link to each server that holds keys, for what must ask them all. Raises `StoreUnavailable`."""
        return await self.writes.primaries() if isinstance(self.writes, ClusterLink) else [self.writes]

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        for link in self._links:
            await link.aclose()
        await super().aclose(close_connection_pool)

    def _guarded(self, link: Link) -> Link:
        return link if self._guard is None else GuardedLink(link, self._guard.breaker, self._guard.slow_s)

    def _link(self, invalidate: Invalidate | None, hedge: Hedge | None = None) -> Link:
        link = (
            ClusterLink(lambda address: self._node(invalidate, address._asdict()), self._seed())
            if self._is_cluster
            else self._node(invalidate, {}, hedge)
        )
        self._links.append(link)
        return link

    def _node(self, invalidate: Invalidate | None, at: Mapping[str, Any], hedge: Hedge | None = None) -> NodeLink:
        """RESP3: only there does a server speak of changed keys on the connection that read them."""
        pool = self.connection_pool
        options = {**pool.connection_kwargs, **at, "protocol": 3}

        return NodeLink(lambda: pool.connection_class(**options), self._patience_s, invalidate, hedge)

    def _seed(self) -> Address:
        options = self.connection_pool.connection_kwargs
        if "path" in options or options.get("db"):
            raise ConfigurationError("redis cluster: its url must name a host and a port, and no database but 0")
        return Address(options.get("host", "localhost"), int(options.get("port", 6379)))


def connect(settings: RedisSettings, io_timeout_s: float = 5.0, guard: ReadGuard | None = None) -> StoreClient:
    """A client that gives up quickly; nothing is opened before the first command.

    One retry at once (a connection may have outlived its server), none with backoff: a read has a fallback and 50 ms,
    and the library's ten retries would spend them. A full pool waits instead of failing. The pool speaks RESP2, because
    under RESP3 the library skips its check that a connection handed out holds no unread reply.

    Raises:
        ConfigurationError: for a URL that is not redis://, rediss:// or unix://, or that a cluster cannot have.
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
    return StoreClient(pool, patience_s=io_timeout_s, is_cluster=settings.cluster, guard=guard)


def links_of(client: Redis) -> StoreClient:
    """`client` as the store needs it. Raises `ConfigurationError` for one that `connect` did not make."""
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        raise ConfigurationError("redis client: decode_responses must be off, because payloads are bytes")
    if not isinstance(client, StoreClient):
        raise ConfigurationError("redis client: make it with featurestore.online.connection.connect")
    return client

"""Reads through the cache: what is not held is asked for in one round trip, each row by one request at a time.

Requests that want a row which is on its way wait for it together; the fetch belongs to none of them, so that none can
cancel it. Windowed views pass by: their value moves with every commit of the stream, and a copy would be out of date
at once. Metering: the request that asks pays; those that wait or are served from the cache count `cached`; reading a
stale row again is on the account of the next request, so that the sum over requests is what Redis was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from core_engine.contracts import ReadCost
from featurestore.codec import UnreadablePayload
from featurestore.keys import row_key
from featurestore.online.fetched import Fetched, Read, Stored
from featurestore.online.read_cache import Load, ReadCache
from featurestore.windows.plan import StoredWindow

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Sorted:
    """Positions of a request's reads by where each is answered."""

    rows: list[Stored]
    cached: int = 0
    wanted: list[int] = field(default_factory=list)  # ask Redis
    stale: list[int] = field(default_factory=list)  # served, and to be read again
    joined: list[int] = field(default_factory=list)  # on their way already


class _Flight(NamedTuple):
    """Where a row that is on its way will be."""

    loading: asyncio.Task[Fetched]
    position: int


class CachedReads:
    """`load` asks Redis; it raises `StoreUnavailable`."""

    def __init__(self, cache: ReadCache, load: Callable[[Sequence[Read]], Awaitable[Fetched]]) -> None:
        self._cache = cache
        self._load = load
        self._flights: dict[bytes, _Flight] = {}
        self._unbilled = ReadCost()

    async def fetch(self, reads: Sequence[Read]) -> Fetched:
        """As `OnlineStore.fetch`."""
        keys = [row_key(view, key).encode() for view, key in reads]
        found = self._sorted(reads, keys)
        joined = [(i, self._flights[keys[i]]) for i in found.joined]
        if found.stale:
            self._start([reads[i] for i in found.stale], [keys[i] for i in found.stale]).add_done_callback(
                self._refreshed
            )
        cost = ReadCost(cached=found.cached + len(joined))
        if found.wanted:
            fetched = await asyncio.shield(
                self._start([reads[i] for i in found.wanted], [keys[i] for i in found.wanted])
            )
            cost += fetched.cost
            for i, row in zip(found.wanted, fetched.rows, strict=True):
                found.rows[i] = row
        for i, flight in joined:
            found.rows[i] = (await asyncio.shield(flight.loading)).rows[flight.position]
        cost, self._unbilled = cost + self._unbilled, ReadCost()
        return Fetched(found.rows, cost)

    def _sorted(self, reads: Sequence[Read], keys: Sequence[bytes]) -> _Sorted:
        found = _Sorted([None] * len(reads))
        for i, (view, _) in enumerate(reads):
            held = None if view.window else self._cache.held(keys[i])
            if held is not None:
                found.rows[i] = held.row
                found.cached += 1
                if held.is_stale and keys[i] not in self._flights:
                    found.stale.append(i)
            elif keys[i] in self._flights:
                found.joined.append(i)
            else:
                found.wanted.append(i)
        return found

    def _start(self, reads: Sequence[Read], keys: Sequence[bytes]) -> asyncio.Task[Fetched]:
        """One round trip for `reads`, on nobody's deadline."""
        plain = {key: i for i, ((view, _), key) in enumerate(zip(reads, keys, strict=True)) if view.window is None}
        loads = {key: self._cache.begin(key) for key in plain}
        loading = asyncio.create_task(self._loaded(reads, plain, loads))
        self._flights |= {key: _Flight(loading, i) for key, i in plain.items()}
        return loading

    async def _loaded(self, reads: Sequence[Read], plain: dict[bytes, int], loads: dict[bytes, Load]) -> Fetched:
        fetched: Fetched | None = None
        try:
            fetched = await self._load(reads)
            return fetched
        finally:
            for key, i in plain.items():
                del self._flights[key]
                row = fetched.rows[i] if fetched else None
                if fetched is None or isinstance(row, UnreadablePayload | StoredWindow):
                    self._cache.abandon(key, loads[key])
                else:
                    self._cache.finish(key, loads[key], row)

    def _refreshed(self, loading: asyncio.Task[Fetched]) -> None:
        if loading.cancelled():
            return
        error = loading.exception()
        if error is None:
            self._unbilled += loading.result().cost
        else:
            log.warning("feature_cache_not_refreshed", error=str(error))

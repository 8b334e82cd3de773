"""The online store: one Redis hash per entity and view version, newest row wins, one round trip per batch.

A windowed view is read here, beside the others in the same round trip, and written by `windows.store`.

Called by `materialize`, by the stream door and by the online reader. It knows keys, payloads and sequences; it does not
judge freshness (the reader does, against event time), so a stale row stays readable until it expires physically. A
stored value that cannot be read costs its own view's features, never those of its neighbours in the same request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from core_engine.contracts import ReadCost
from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.catalog import CompiledView, checked_key, compile_view
from featurestore.codec import INT64_MAX, UnreadablePayload
from featurestore.definitions import FeatureView, StoredRow
from featurestore.instants import Clock, duration_us, to_us, utc_now
from featurestore.keys import progress_key, row_key, window_key
from featurestore.online.cached_reads import CachedReads
from featurestore.online.connection import links_of
from featurestore.online.fetched import Fetched, Read, Stored, StoredPayload
from featurestore.online.link import Command
from featurestore.online.newest_wins import (
    FIELDS,
    FUNCTION,
    LIBRARY,
    pack_event_time,
    pack_sequence,
    unpack_event_time,
)
from featurestore.online.read_cache import ReadCache
from featurestore.online.server_functions import attempted, refusal
from featurestore.online.view_memory import ViewMemory, view_memory
from featurestore.windows.plan import StoredWindow
from featurestore.windows.state import stored_window
from featurestore.windows.store import WindowStore

BATCH_ROWS: Final = 1_000  # a batch holds the server for a few milliseconds, so that reads slip in between
LAST_EXPIRY_MS: Final = 253_402_300_799_999  # the year 9999
WRONG_TYPE: Final = "WRONGTYPE"
HASHES_OF_A_WINDOW: Final = 2  # its tiles, and how far the stream has come


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of the rows: written, kept out by a row that is as new or newer, or too old to hold at all."""

    written: int = 0
    kept: int = 0
    expired: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(self.written + other.written, self.kept + other.kept, self.expired + other.expired)


class _Write(NamedTuple):
    """The arguments of one call of the server-side function, and the entity that it is about."""

    entity: str
    key: str
    event_time: bytes
    sequence: bytes
    payload: bytes
    expire_at_ms: int


class OnlineStore:
    """Feature rows in Redis. `retention_s` is how long a row is kept past its TTL, so that `stale` can be seen.

    `windows` writes what the windowed views read. With a `cache`, which later stores of the same client may share,
    plain rows are kept in this process; windows always come from Redis.
    """

    def __init__(
        self,
        client: Redis,
        views: Iterable[FeatureView],
        retention_s: float,
        clock: Clock = utc_now,
        cache: ReadCache | None = None,
    ) -> None:
        links, views = links_of(client), list(views)
        self.windows = WindowStore(client, views, retention_s)
        self._client = client
        self._reads = links.reads if cache is None else links.tracked(cache.invalidated)
        self._cached = None if cache is None else CachedReads(cache, self._from_redis)
        self._views = {(view.name, view.version): compile_view(view) for view in views}
        self._retention_us = duration_us(retention_s)
        self._clock = clock

    async def write(self, view: FeatureView, rows: Iterable[StoredRow]) -> WriteResult:
        """Writes `rows`, newest wins by (event time, created time, offset); ties keep what is there.

        Batches of `BATCH_ROWS`, each one round trip. Safe to repeat after any failure. A row past TTL + retention is
        not sent.

        Raises:
            InvalidRequest: for a row that does not fit the view; nothing of its batch is sent, earlier batches are.
            StoreUnavailable: Redis away, or refusing the row that it names (`StoreFull`, `StoreReadOnly`); each row of
                the batch is written whole or not at all.
        """
        compiled = self._declared(view)
        result = WriteResult()
        pending = iter(rows)
        while batch := list(islice(pending, BATCH_ROWS)):
            result += await self._write_batch(compiled, batch)
        return result

    async def fetch(self, reads: Sequence[Read]) -> Fetched:
        """The stored row or window of each (view, entity key), in one pipelined round trip (to each node of a cluster).

        None where nothing is stored, an `UnreadablePayload` in the place of what this store did not write.

        Raises:
            StoreUnavailable: Redis away, or refusing.
        """
        return await (self._from_redis(reads) if self._cached is None else self._cached.fetch(reads))

    async def memory(self, view: FeatureView, pause_s: float = 0.0) -> ViewMemory:
        """What the view takes in Redis; see `view_memory.view_memory`."""
        return await view_memory(self._client, self._declared(view).view, pause_s)

    async def _from_redis(self, reads: Sequence[Read]) -> Fetched:
        commands = [command for view, key in reads for command in _reading(view, key)]
        replies, round_trips, hedges = await self._reads.ask(commands)
        for reply in replies:
            if isinstance(reply, ResponseError) and not str(reply).startswith(WRONG_TYPE):
                raise refusal(reply)
        left = iter(replies)
        rows = [
            self._window(view, key, next(left), next(left)) if view.window else _stored(view, key, next(left))
            for view, key in reads
        ]
        asked = ReadCost(reads=len(commands) * (1 + hedges), round_trips=round_trips, hedges=hedges)
        return Fetched(rows, asked + _found(rows))

    def _window(self, view: FeatureView, key: str, *replies: Any) -> Stored:
        plan = self._declared(view).plan
        assert plan is not None
        if any(isinstance(reply, ResponseError) for reply in replies):
            return _foreign(view, key)
        try:
            return stored_window(plan, *replies)
        except UnreadablePayload as error:
            return error

    def _declared(self, view: FeatureView) -> CompiledView:
        compiled = self._views.get((view.name, view.version))
        if compiled is None or compiled.view != view:
            raise ConfigurationError(
                f"feature view {view.name} version {view.version} is not the one that this store was built with;"
                f" it has {[f'{name}:{version}' for name, version in self._views]}"
            )
        return compiled

    async def _write_batch(self, compiled: CompiledView, rows: Sequence[StoredRow]) -> WriteResult:
        now_ms = to_us(self._clock(), "clock") // 1000
        writes = list(self._encode(compiled, rows))
        living = [write for write in writes if write.expire_at_ms > now_ms]
        written = await self._call(compiled.view, living)
        return WriteResult(written, len(living) - written, len(writes) - len(living))

    def _encode(self, compiled: CompiledView, rows: Iterable[StoredRow]) -> Iterator[_Write]:
        view, lifetime_us = compiled.view, compiled.ttl_us + self._retention_us
        for row in rows:
            key = checked_key(view, row.key)
            if not 0 <= row.offset <= INT64_MAX:
                expected = "an integer from 0 to 2**63 - 1"
                field = f"{view.name}.offset"
                raise InvalidRequest(
                    f"{field} = {row.offset!r}: expected {expected}", field=field, value=row.offset, expected=expected
                )
            event_us = to_us(row.event_time, f"{view.name}.event_time")
            created_us = to_us(row.created_time, f"{view.name}.created_time")
            expire_at_ms = min((event_us + lifetime_us) // 1000, LAST_EXPIRY_MS)
            yield _Write(
                key,
                row_key(view, key),
                pack_event_time(event_us),
                pack_sequence(created_us, row.offset),
                compiled.codec.encode(row.values, key),
                expire_at_ms,
            )

    async def _call(self, view: FeatureView, writes: Sequence[_Write]) -> int:
        """How many of `writes` the server took; raises for the first that it refused."""
        replies = await attempted(self._client, LIBRARY, [_call_of(write) for write in writes])
        for write, reply in zip(writes, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise refusal(reply, f"feature view {view.name}, entity {view.entity} = {write.entity!r}")
        return sum(reply == 1 for reply in replies)


def _reading(view: FeatureView, key: str) -> list[Command]:
    if view.window is None:
        return [("HMGET", row_key(view, key), FIELDS[0], FIELDS[2])]
    return [("HGETALL", window_key(view, key)), ("HGETALL", progress_key(view))]


def _call_of(write: _Write) -> Command:
    return ("FCALL", FUNCTION, 1, write.key, write.event_time, write.sequence, write.payload, write.expire_at_ms)


def _stored(view: FeatureView, key: str, reply: Sequence[bytes | None] | ResponseError) -> Stored:
    if isinstance(reply, ResponseError):
        return _foreign(view, key)
    event_time, payload = reply
    if event_time is None or payload is None:
        return None
    try:
        return StoredPayload(unpack_event_time(event_time), payload)
    except struct.error:
        return _foreign(view, key)


def _foreign(view: FeatureView, key: str) -> UnreadablePayload:
    return UnreadablePayload(
        f"feature view {view.name}: the hash {row_key(view, key)!r} was not written by this store; delete it"
    )


def _found(rows: Iterable[Stored]) -> ReadCost:
    hits = num_bytes = 0
    for row in rows:
        if isinstance(row, StoredPayload):
            hits += 1
            num_bytes += len(row.payload)
        elif isinstance(row, StoredWindow):
            hits += HASHES_OF_A_WINDOW
            num_bytes += row.num_bytes
    return ReadCost(hits=hits, bytes=num_bytes)

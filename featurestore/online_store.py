"""The online store: one Redis hash per entity and view version, newest row wins, one round trip per batch.

A windowed view is read here, beside the others in the same round trip, and written by `windows.store`.

Called by `materialize`, by the stream door and by the online reader. It knows keys, payloads and sequences; it does not
judge freshness (the reader does, against event time), so a stale row stays readable until it expires physically.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from redis.asyncio import Redis

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.catalog import CompiledView, checked_key, compile_view
from featurestore.codec import INT64_MAX, UnreadablePayload
from featurestore.definitions import FeatureView, StoredRow
from featurestore.instants import Clock, duration_us, to_us, utc_now
from featurestore.keys import progress_key, row_key, window_key
from featurestore.newest_wins import (
    FIELDS,
    FUNCTION,
    LIBRARY,
    pack_event_time,
    pack_sequence,
    unpack_event_time,
)
from featurestore.server_functions import called, pipelined
from featurestore.windows.plan import StoredWindow
from featurestore.windows.state import stored_window
from featurestore.windows.store import WindowStore

BATCH_ROWS: Final = 1_000  # a batch holds the server for a few milliseconds, so that reads slip in between
LAST_EXPIRY_MS: Final = 253_402_300_799_999  # the year 9999


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of the rows: written, kept out by a row that is as new or newer, or too old to hold at all."""

    written: int = 0
    kept: int = 0
    expired: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(self.written + other.written, self.kept + other.kept, self.expired + other.expired)


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """What a hash holds: the event time in microseconds since 1970, and the row's payload (`codec`)."""

    event_us: int
    payload: bytes


class _Write(NamedTuple):
    """The arguments of one call of the server-side function."""

    key: str
    event_time: bytes
    sequence: bytes
    payload: bytes
    expire_at_ms: int


Stored: TypeAlias = StoredPayload | StoredWindow | None


class OnlineStore:
    """Feature rows in Redis. `retention_s` is how long a row is kept past its TTL, so that `stale` can be seen.

    `windows` writes what the windowed views read.
    """

    def __init__(self, client: Redis, views: Iterable[FeatureView], retention_s: float, clock: Clock = utc_now) -> None:
        if client.connection_pool.connection_kwargs.get("decode_responses"):
            raise ConfigurationError("redis client: decode_responses must be off, because payloads are bytes")
        views = list(views)
        self.windows = WindowStore(client, views, retention_s)
        self._client = client
        self._views = {(view.name, view.version): compile_view(view) for view in views}
        self._retention_us = duration_us(retention_s)
        self._clock = clock

    async def write(self, view: FeatureView, rows: Iterable[StoredRow]) -> WriteResult:
        """Writes `rows`, newest wins by (event time, created time, offset); ties keep what is there.

        Batches of `BATCH_ROWS`, each one round trip. Safe to repeat after any failure. A row past TTL + retention is
        not sent.

        Raises:
            InvalidRequest: for a row that does not fit the view; nothing of its batch is sent, earlier batches are.
            StoreUnavailable: Redis away, or refusing; some of the batch may have been written.
        """
        compiled = self._declared(view)
        result = WriteResult()
        pending = iter(rows)
        while batch := list(islice(pending, BATCH_ROWS)):
            result += await self._write_batch(compiled, batch)
        return result

    async def fetch(self, reads: Sequence[tuple[FeatureView, str]]) -> list[Stored]:
        """The stored row or window, or None, for each (view, entity key), in one pipelined round trip.

        Raises:
            StoreUnavailable: Redis away, or refusing.
            UnreadablePayload: a hash that this store did not write.
        """
        commands = [command for view, key in reads for command in _reading(view, key)]
        replies = iter(await pipelined(self._client, commands))
        return [
            self._window(view, next(replies), next(replies)) if view.window else _stored(view, key, next(replies))
            for view, key in reads
        ]

    def _window(self, view: FeatureView, held: dict[bytes, bytes], progress: dict[bytes, bytes]) -> Stored:
        plan = self._declared(view).plan
        assert plan is not None
        return stored_window(plan, held, progress)

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
        written = await self._call(living)
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
                row_key(view, key),
                pack_event_time(event_us),
                pack_sequence(created_us, row.offset),
                compiled.codec.encode(row.values),
                expire_at_ms,
            )

    async def _call(self, writes: Sequence[_Write]) -> int:
        """How many of `writes` the server took."""
        replies = await called(self._client, LIBRARY, [_call_of(write) for write in writes])
        return sum(reply == 1 for reply in replies)


def _reading(view: FeatureView, key: str) -> list[tuple[str, ...]]:
    if view.window is None:
        return [("HMGET", row_key(view, key), FIELDS[0], FIELDS[2])]
    return [("HGETALL", window_key(view, key)), ("HGETALL", progress_key(view))]


def _call_of(write: _Write) -> tuple[Any, ...]:
    key, *arguments = write
    return ("FCALL", FUNCTION, 1, key, *arguments)


def _stored(view: FeatureView, key: str, reply: Sequence[bytes | None]) -> StoredPayload | None:
    event_time, payload = reply
    if event_time is None or payload is None:
        return None
    try:
        return StoredPayload(unpack_event_time(event_time), payload)
    except struct.error:
        raise UnreadablePayload(
            f"feature view {view.name}: the hash {row_key(view, key)!r} was not written by this store"
        ) from None

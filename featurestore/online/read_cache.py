"""Rows of the online store kept in this process: which may be served still, and which must go. No task, no socket.

A row is fresh for the TTL, less a random tenth so that rows read together do not end together; past that it may be
served for `stale_s` while it is read again; past both it is gone. Times count from when the row was asked for, not from
when it came. That an entity has no row is kept as well. Least recently used rows make room. How old the values are is
judged on every read against their event time, as without a cache.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from core_engine.contracts import Monotonic
from core_engine.settings import FeatureSettings
from featurestore.online.fetched import StoredPayload

ENTRY_BYTES: Final = 450  # of Python's objects around one row; `test_read_cache` measures what a full cache takes
JITTER: Final = 0.1


class Held(NamedTuple):
    """A row that may be served; None: the entity has none. A stale one is to be read again."""

    row: StoredPayload | None
    is_stale: bool


class _Entry(NamedTuple):
    row: StoredPayload | None
    stale_at_s: float
    gone_at_s: float


class Load:
    """One row on its way from Redis. If its key changes before it comes, those who wait get it, and it is not kept."""

    __slots__ = ("asked_at_s", "is_current")

    def __init__(self, asked_at_s: float) -> None:
        self.asked_at_s = asked_at_s
        self.is_current = True


class ReadCache:
    """At most `max_bytes` of rows by the name of their hash. `jitter` gives numbers from 0 to 1."""

    def __init__(
        self,
        max_bytes: int,
        ttl_s: float,
        stale_s: float = 0.0,
        clock: Monotonic = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._stale_s = stale_s
        self._clock = clock
        self._jitter = jitter
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._loads: dict[bytes, Load] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def held(self, key: bytes) -> Held | None:
        """What may be served for `key` now."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now_s = self._clock()
        if now_s >= entry.gone_at_s:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return Held(entry.row, now_s >= entry.stale_at_s)

    def begin(self, key: bytes) -> Load:
        """To be called before `key` is asked for. Of several loads of a key only what the last brings is kept."""
        if key in self._loads:
            self._loads[key].is_current = False
        self._loads[key] = load = Load(self._clock())
        return load

    def finish(self, key: bytes, load: Load, row: StoredPayload | None) -> None:
        """Keep what `load` brought, unless the key changed in the meantime."""
        self.abandon(key, load)
        if not load.is_current:
            return
        self._drop(key)
        ttl_s = self._ttl_s * (1.0 - JITTER * self._jitter())
        stale_at_s = load.asked_at_s + ttl_s
        self._entries[key] = _Entry(row, stale_at_s, stale_at_s + self._stale_s)
        self.num_bytes += _size(key, row)
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def abandon(self, key: bytes, load: Load) -> None:
        """`load` brought nothing that can be kept."""
        if self._loads.get(key) is load:
            del self._loads[key]

    def invalidated(self, keys: Sequence[bytes] | None) -> None:
        """These keys have changed; None: all may have, or nobody tells any more."""
        for key in list(self._entries) if keys is None else keys:
            self._drop(key)
        for key in list(self._loads) if keys is None else keys:
            if key in self._loads:
                self._loads[key].is_current = False

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= _size(key, entry.row)


def read_cache(settings: FeatureSettings) -> ReadCache | None:
    """The cache that the settings ask for; None where they ask for none."""
    if not settings.cache_bytes:
        return None
    return ReadCache(settings.cache_bytes, settings.cache_ttl_s, settings.cache_stale_s)


def _size(key: bytes, row: StoredPayload | None) -> int:
    return ENTRY_BYTES + len(key) + (len(row.payload) if row else 0)

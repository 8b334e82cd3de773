"""How many connections a server holds, and who goes when another comes. Pure; one event loop.

While there is room, everybody has a place. Then whoever has asked for nothing the longest makes room: an idle client
costs no one theirs. Where every place has a request under way, a few connections more are let in without one, so that a
probe among them gets its answer and everybody else hears why not. So nobody who holds on to connections, however many,
keeps probes out.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from core_engine.contracts import Monotonic
from core_engine.errors import Unavailable

C = TypeVar("C", bound=Hashable)

NO_PLACE = "headrace.no_place"  # in the scope of a request whose connection has none
EXTRA = 32  # connections without a place that may wait for their request to come
IDLE_S = 1.0  # a client that connects and asks at once is not idle meanwhile


class TooManyConnections(Unavailable):
    code = "too_many_connections"


class Going(enum.StrEnum):
    """Why a connection is ended for another; the label of a metric."""

    IDLE = "idle"
    CROWDED = "too_many_connections"


@dataclass(frozen=True, slots=True)
class Ended(Generic[C]):
    connection: C
    why: Going


class OpenConnections(Generic[C]):
    """At most `most` have a place, and `extra` wait without one. A connection without a request under way is idle after
    `idle_s`."""

    def __init__(
        self, most: int, *, extra: int = EXTRA, idle_s: float = IDLE_S, clock: Monotonic = time.monotonic
    ) -> None:
        self._most = most
        self._most_extra = extra
        self._idle_s = idle_s
        self._clock = clock
        self._placed: set[C] = set()
        self._unused: dict[C, float] = {}  # of these, without a request: since when, the longest first
        self._extra: dict[C, None] = {}  # without place and request, the oldest first

    def enter(self, connection: C) -> Ended[C] | None:
        """A connection has come; returns the one that is to be ended for it, if one is."""
        longest = next(iter(self._unused), None)
        if len(self._placed) < self._most:
            self._place(connection)
            return None
        if longest is not None and self._clock() - self._unused[longest] >= self._idle_s:
            self.leave(longest)
            self._place(connection)
            return Ended(longest, Going.IDLE)
        self._extra[connection] = None
        if len(self._extra) <= self._most_extra:
            return None
        oldest = next(iter(self._extra))
        self.leave(oldest)
        return Ended(oldest, Going.CROWDED)

    def begin(self, connection: C) -> bool:
        """The head of a request has come whole. Whether its connection has a place, or has found one now."""
        self._unused.pop(connection, None)
        if connection in self._extra:
            del self._extra[connection]
            if len(self._placed) < self._most:
                self._placed.add(connection)
        return connection in self._placed

    def end(self, connection: C) -> None:
        """No request is under way any more."""
        if connection in self._placed:
            self._unused[connection] = self._clock()

    def leave(self, connection: C) -> None:
        """The connection is gone; one that was ended for another has left already."""
        self._placed.discard(connection)
        self._unused.pop(connection, None)
        self._extra.pop(connection, None)

    def _place(self, connection: C) -> None:
        self._placed.add(connection)
        self._unused[connection] = self._clock()

"""How fast a run may go: so much a second, spread evenly, whoever asks.

Source: the generic cell rate algorithm (ITU-T I.371, virtual scheduling): one instant says when the next part is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from core_engine.contracts import Monotonic
from core_engine.errors import ConfigurationError


class Pace(Protocol):
    """Called before each part of the work, with its size."""

    async def take(self, amount: int) -> None: ...


class Unbounded:
    """As fast as it goes."""

    async def take(self, amount: int) -> None:
        return


UNBOUNDED: Final = Unbounded()


class TokenBucket:
    """At most `per_second * t + burst` in any t seconds, and one part more; waits on a timer, never in a loop.

    For the tasks of one event loop. Whoever comes first goes first.
    """

    def __init__(
        self,
        per_second: float,
        burst: float,
        clock: Monotonic = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not per_second > 0:
            raise ConfigurationError(f"a rate must be positive, got {per_second} a second")
        self._per_second = per_second
        self._tolerance_s = burst / per_second
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()

    async def take(self, amount: int) -> None:
        """Returns when `amount` more may be done."""
        now_s = self._clock()
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + amount / self._per_second
        wait_s = due_s - self._tolerance_s - now_s
        if wait_s > 0:
            await self._sleep(wait_s)


def pace(per_second: float | None, burst: float) -> Pace:
    """`per_second` of None: unbounded."""
    return UNBOUNDED if per_second is None else TokenBucket(per_second, burst)

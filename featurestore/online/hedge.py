"""A second try for reads that are slower than nearly all others, on a connection of its own.

It helps where the connection is what is slow: a large reply ahead in the same queue, a lost packet, a socket that
outlived its server. A slow server is slow on both, so that hedges have a budget. Whichever answers first is taken, and
the other's replies are read and dropped. Reads only: what is asked twice must not change anything.
Source: J. Dean, L. A. Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013 (hedged requests: after the
95th percentile, so that the load grows by about 5 %).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from core_engine.contracts import Monotonic
from core_engine.errors import StoreUnavailable
from core_engine.rolling_quantile import RollingQuantile
from featurestore.online.link import Command, Link

LATE: Final = 0.95
LEAST_DELAY_S: Final = 0.001  # a timer of the event loop is no finer, and no caller gains by less


class Hedge:
    """`second` is asked after the 95th percentile of what the first takes; `share` of reads at most, `burst` at once.

    One object per link that is hedged. `num_hedges` counts those that were sent, `num_won` those that came first.
    """

    def __init__(
        self, second: Link, *, share: float = 0.05, burst: float = 10.0, clock: Monotonic = time.monotonic
    ) -> None:
        self.num_hedges = 0
        self.num_won = 0
        self.times = RollingQuantile(LATE)
        self._second = second
        self._share = share
        self._burst = burst
        self._clock = clock
        self._budget = 0.0  # hedges that may be sent; nothing is known of the first reads anyway
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, answered: asyncio.Future[list[Any]], commands: Sequence[Command]) -> HedgeWatch:
        """As `link.Hedging`."""
        self._budget = min(self._burst, self._budget + self._share)
        return HedgeWatch(self, answered, commands, self._clock)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._second.aclose()

    def ask_again(self, answered: asyncio.Future[list[Any]], commands: Sequence[Command]) -> bool:
        """Whether there was budget for it."""
        if answered.done() or self._budget < 1.0:
            return False
        self._budget -= 1.0
        self.num_hedges += 1
        task = asyncio.create_task(self._race(answered, commands), name="hedged read")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _race(self, answered: asyncio.Future[list[Any]], commands: Sequence[Command]) -> None:
        with contextlib.suppress(StoreUnavailable):  # the first may answer still, and it says what is wrong
            replies = (await self._second.ask(commands)).replies
            if not answered.done():
                self.num_won += 1
                answered.set_result(replies)


class HedgeWatch:
    """One read: its timer, and whether it was asked again."""

    __slots__ = ("_answered", "_clock", "_commands", "_hedge", "_since_s", "_timer", "hedges")

    def __init__(
        self, hedge: Hedge, answered: asyncio.Future[list[Any]], commands: Sequence[Command], clock: Monotonic
    ) -> None:
        self.hedges = 0
        self._hedge = hedge
        self._answered = answered
        self._commands = commands
        self._clock = clock
        self._since_s = clock()
        self._timer: asyncio.TimerHandle | None = None
        if (late_s := hedge.times.value) is not None:
            delay_s = max(LEAST_DELAY_S, late_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._late)

    def end(self) -> None:
        """It is over, by an answer or because nobody waits any more; what was given up counts as it was."""
        if self._timer is not None:
            self._timer.cancel()
        self._hedge.times.add(self._clock() - self._since_s)

    def _late(self) -> None:
        if self._hedge.ask_again(self._answered, self._commands):
            self.hedges = 1

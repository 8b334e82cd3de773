"""Silence of a child that should be giving signs of life.

Silence is counted in ticks of the watcher's own event loop, not in seconds of a clock: a parent that was itself held up
(a long computation in its thread, an overloaded machine) counts one tick for the whole pause, then reads the beats that
waited in its socket, and so never takes its own stall for the child's.
"""

from __future__ import annotations

import asyncio

TICKS = 10


class Pulse:
    """Beats of one child; lost after `lost_after_s` without one."""

    def __init__(self, lost_after_s: float) -> None:
        self.lost_after_s = lost_after_s
        self._silent_ticks = 0

    def beat(self) -> None:
        self._silent_ticks = 0

    async def lost(self) -> None:
        """Returns when the child has been silent for `lost_after_s`, counted from this call at the earliest."""
        self.beat()
        while self._silent_ticks < TICKS:
            await asyncio.sleep(self.lost_after_s / TICKS)
            self._silent_ticks += 1

"""How late this process's event loop runs what is due: a sign of a door near its limit that needs no tuning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from core_engine.contracts import Monotonic

PERIOD_S = 0.05
NEAR_LIMIT_S = 0.005  # a tenth of a 50 ms budget


class LoopLag:
    """`measure` runs for as long as the loop serves; `late_s` is how late its last wake-up was, seconds."""

    def __init__(
        self, clock: Monotonic = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self.late_s = 0.0

    @property
    def is_near_limit(self) -> bool:
        return self.late_s > NEAR_LIMIT_S

    async def measure(self) -> None:
        while True:
            due_s = self._clock() + PERIOD_S
            await self._sleep(PERIOD_S)
            self.late_s = max(0.0, self._clock() - due_s)

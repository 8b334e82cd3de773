"""The rungs below the model, asked while the model still may answer, so that at its deadline one of them is ready.

Nothing is prepared while the model is in time: a timer goes off when half of what it may take has passed, and it takes
longer than 95 of 100 of its last answers did; at the latest, where just enough time is left for a look-up. A model that
answers after all ends what was begun.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from core_engine.contracts import Path
from core_engine.predictors.climb import Climb, Missed
from core_engine.predictors.fallbacks import Fallbacks


class Preparation:
    """Around the model rung of one request: `async with`. What came of it is in `climb.prepared`.

    `usual_s` is what the model takes at most as a rule, None where that is not known yet.
    """

    def __init__(self, fallbacks: Fallbacks, climb: Climb, usual_s: float | None) -> None:
        self._fallbacks = fallbacks
        self._climb = climb
        self._usual_s = usual_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        request = self._climb.request
        if self._climb.below_model and request.deadline.is_finite and request.path is not Path.SHADOW:
            left_s = request.deadline.remaining() - self._climb.reserve_s
            delay_s = when_at_risk(left_s, self._usual_s, self._fallbacks.usual_lookup_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A model that missed waits for a look-up that is on its way, which has its own deadline."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            if isinstance(error, Missed):
                await self._task
            elif not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._prepare(), name="rungs below the model")

    async def _prepare(self) -> None:
        """In the ladder's order, as far as the first that has an answer."""
        for rung in self._climb.below_model:
            try:
                self._climb.prepared[rung] = await self._fallbacks.ask(rung, self._climb)
            except Missed as missed:
                self._climb.prepared[rung] = missed
            else:
                return


def when_at_risk(left_s: float, usual_s: float | None, lookup_s: float) -> float:
    """Seconds until the rungs below are to be begun, of `left_s` that the model may take.

    Late enough that it is rarely for nothing, and early enough for a look-up that takes `lookup_s`.
    """
    return max(0.0, min(max(left_s / 2, usual_s or 0.0), left_s - lookup_s))

"""The door's own limit: how many predictions of each predictor may be on their way to the model. asyncio, one loop.

What is over the limit waits a few milliseconds for a place, among few; whoever finds none is told so at once, and the
next rung answers. Each predictor has as many places as the limit says, so that one whose model is slow takes none from
the others. The measure of congestion is the turn of the event loop: how long a callback that is ready waits for its
turn. It is the delay that this process adds to everything it does, whatever the engine and the store take.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field

from core_engine.contracts import Deadline, Monotonic
from core_engine.gradient_limit import GradientLimit

TURNS = 3  # of the event loop that an answer by the model needs: for the features, for the engine's reply, for its own
TURN_HOLD_S = 0.02  # how long a long turn counts after shorter ones: of those who ask in one turn, the last waits least


@dataclass(slots=True)
class _Queue:
    """Of one predictor: how many hold a place, and who waits for one."""

    in_flight: int = 0
    waiting: deque[asyncio.Future[bool]] = field(default_factory=deque)


class Places:
    """At most `max_waiting` of a predictor wait for a place, each at most `max_wait_s`, first come first served."""

    def __init__(
        self,
        limit: GradientLimit,
        *,
        max_waiting: int = 8,
        max_wait_s: float = 0.005,
        clock: Monotonic = time.perf_counter,
    ) -> None:
        self.limit = limit
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)  # by predictor: as many as are registered
        self._turn_s, self._turned_s = 0.0, -math.inf  # the longest turn of late, and when it ended

    @property
    def in_flight(self) -> int:
        """Places that are held, of all predictors."""
        return sum(queue.in_flight for queue in self._queues.values())

    @property
    def num_waiting(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    @property
    def turn_s(self) -> float:
        """How long turns of the event loop take of late, seconds: whatever waits for one waits so long at the most."""
        return self._turn_s if self._clock() - self._turned_s <= TURN_HOLD_S else 0.0

    async def take(self, predictor: str, deadline: Deadline) -> bool:
        """Whether there is a place, waited for at most until `deadline`; who got one gives it back by `leave`.

        There is none for a request whose answer the loop's own turns would make late, and nobody waits for one while a
        turn takes longer than anybody may wait.
        """
        queue = self._queues[predictor]
        asyncio.get_running_loop().call_soon(self._turned, queue, self._clock())
        if deadline.remaining() < TURNS * self.turn_s:
            return False
        if queue.in_flight < self.limit.value and not queue.waiting:
            queue.in_flight += 1
            return True
        if len(queue.waiting) >= self._max_waiting or self.turn_s > self._max_wait_s:
            return False
        return await self._waited(queue, deadline)

    def leave(self, predictor: str) -> None:
        self._leave(self._queues[predictor])

    async def _waited(self, queue: _Queue, deadline: Deadline) -> bool:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        queue.waiting.append(place)
        giving_up = loop.call_later(min(self._max_wait_s, deadline.remaining()), _give_up, queue, place)
        try:
            return await place
        except asyncio.CancelledError:
            self._forsake(queue, place)
            raise
        finally:
            giving_up.cancel()

    def _leave(self, queue: _Queue) -> None:
        """A place is free: who has waited longest takes it."""
        queue.in_flight -= 1
        while queue.waiting and queue.in_flight < self.limit.value:
            place = queue.waiting.popleft()
            if not place.done():  # else: its request went away this very instant
                queue.in_flight += 1
                place.set_result(True)

    def _forsake(self, queue: _Queue, place: asyncio.Future[bool]) -> None:
        """Its request went away: while it waited, or in the instant after it was given the place."""
        if place in queue.waiting:
            queue.waiting.remove(place)
        elif not place.cancelled() and place.result():
            self._leave(queue)

    def _turned(self, queue: _Queue, since_s: float) -> None:
        now_s = self._clock()
        if now_s - since_s >= self.turn_s:
            self._turn_s, self._turned_s = now_s - since_s, now_s
        self.limit.add(now_s - since_s, queue.in_flight)


def _give_up(queue: _Queue, place: asyncio.Future[bool]) -> None:
    if not place.done():
        queue.waiting.remove(place)
        place.set_result(False)

"""How an engine is told to go: the first word drains it, a second one ends it at once.

Draining: nothing new is taken, what is there may finish for `drain_s`. Set from signal handlers and other threads, so
it holds plain values and no lock.
"""

from __future__ import annotations

import math

from core_engine.contracts import Monotonic


class Shutdown:
    def __init__(self, drain_s: float, clock: Monotonic) -> None:
        self.drain_s = drain_s
        self._clock = clock
        self._drained_at_s = math.inf
        self._at_once = False

    def ask(self) -> None:
        """Drain; asked again, stop at once."""
        if self.is_draining:
            self._at_once = True
        else:
            self._drained_at_s = self._clock() + self.drain_s

    def at_once(self) -> None:
        self._at_once = True

    @property
    def is_asked(self) -> bool:
        return self.is_draining or self._at_once

    @property
    def is_draining(self) -> bool:
        return self._drained_at_s < math.inf

    def is_due(self, *, has_attempts: bool) -> bool:
        """Whether the engine should end now."""
        return self._at_once or (self.is_draining and (not has_attempts or self._clock() >= self._drained_at_s))

    @property
    def reason(self) -> str:
        """What is told to the attempts that it ends."""
        if self._at_once:
            return "the engine was stopped"
        return f"the engine drained for {self.drain_s:g} s and stopped" if self.is_draining else "the engine failed"

"""A circuit breaker: a dependency that has not answered for a while is not asked, but for one probe at a time.

Pure: it is told what happened, and says whether to ask. Its owner decides what a failure is.
Source: M. Nygard, "Release It!", 2nd ed., Pragmatic Bookshelf 2018, "Circuit Breaker" (states and probes).
"""

from __future__ import annotations

import enum
import math
import time

from core_engine.contracts import Monotonic


class BreakerState(enum.IntEnum):
    """The numbers are those of the metric."""

    CLOSED = 0  # everybody asks
    HALF_OPEN = 1  # one probe is on its way
    OPEN = 2  # nobody asks


class Breaker:
    """Opens after `min_failures` in a row that are spread over `span_s`; lets a probe through every `retry_s`.

    The span is there because one stall of this process lets many waits end together, which says nothing of the other
    side; and because under overload, where some calls succeed and most fail, a run of failures is short.
    """

    def __init__(
        self, *, min_failures: int = 5, span_s: float = 0.1, retry_s: float = 0.5, clock: Monotonic = time.monotonic
    ) -> None:
        self.state = BreakerState.CLOSED
        self._min_failures = min_failures
        self._span_s = span_s
        self._retry_s = retry_s
        self._clock = clock
        self._num_failures = 0
        self._since_s = math.inf  # the first failure of the run
        self._retry_at_s = 0.0

    def allow(self) -> bool:
        """Whether to ask now. Where it is not closed, a yes is the probe: one that never ends blocks none after it."""
        if self.state is BreakerState.CLOSED:
            return True
        now_s = self._clock()
        if now_s < self._retry_at_s:
            return False
        self.state, self._retry_at_s = BreakerState.HALF_OPEN, now_s + self._retry_s
        return True

    def succeeded(self) -> None:
        """It answered: all may ask again. While open that is the end of a call from before, and says nothing."""
        if self.state is not BreakerState.OPEN:
            self.state, self._num_failures = BreakerState.CLOSED, 0

    def failed(self) -> None:
        """It did not answer, or too late to be of use."""
        now_s = self._clock()
        if not self._num_failures:
            self._since_s = now_s
        self._num_failures += 1
        is_run = self._num_failures >= self._min_failures and now_s - self._since_s >= self._span_s
        if self.state is BreakerState.HALF_OPEN or (self.state is BreakerState.CLOSED and is_run):
            self.state, self._retry_at_s = BreakerState.OPEN, now_s + self._retry_s

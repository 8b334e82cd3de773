"""By how much answers come later than forecast: learnt from those that came, and from those that did not.

The client's forecast follows the engine's steps. It knows nothing of the way there and back, of a caller that is busy,
or of a machine that has just become slower. Past capacity that decides everything: whoever is admitted a little too
late is computed in vain, and then so is everybody. The margin is a quantile, followed by small steps; it fades, so that
somebody asks again.

Source: Robbins and Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics 22(3), 1951.
"""

from __future__ import annotations

import math
import time

from core_engine.contracts import Monotonic

LATE_SHARE = 0.02  # of those that are admitted, the part that may come later than forecast and margin
STEP_S = 2e-3
FADES_S = 5.0  # time constant


class ForecastMargin:
    """Of one class of requests. Seconds."""

    def __init__(self, clock: Monotonic = time.monotonic) -> None:
        self._clock = clock
        self._value_s = 0.0
        self._at_s = clock()

    @property
    def value_s(self) -> float:
        """What to add to a forecast."""
        now_s = self._clock()
        self._value_s *= math.exp(-max(0.0, now_s - self._at_s) / FADES_S)
        self._at_s = now_s
        return self._value_s

    def observe(self, late_s: float) -> None:
        """An answer came `late_s` after its forecast instant, or had not come by then."""
        value_s = self.value_s
        if late_s > value_s:
            self._value_s = value_s + STEP_S * (1 - LATE_SHARE)
        else:
            self._value_s = max(0.0, value_s - STEP_S * LATE_SHARE)

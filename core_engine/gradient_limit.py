"""How much a process may have in hand: a limit that follows how its latency compares with its own least. Pure.

Latency that stays near its minimum says that there is room, and the limit grows by the square root of itself; latency
above what is tolerated shrinks it in proportion.
Sources: Envoy, "Adaptive Concurrency", https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/
adaptive_concurrency_filter (gradient and headroom); Netflix, concurrency-limits, GradientLimit (smoothing, and no
change while the limit is not what holds anybody back).
"""

from __future__ import annotations

import math


class GradientLimit:
    """Between `smallest` and `largest`, from `initial`; looked at after every `window` samples, by their median.

    A sample may be `tolerance` times the least median of any window, and `slack_s` above that, before it means
    congestion. The least is never forgotten: it must be of something that belongs to the machine, such as the turn of
    an idle event loop, and not to the work at hand.
    """

    def __init__(
        self,
        *,
        initial: int = 24,
        smallest: int = 4,
        largest: int = 512,
        slack_s: float = 0.001,
        tolerance: float = 2.0,
        smoothing: float = 0.4,
        window: int = 32,
    ) -> None:
        self._smallest = smallest
        self._largest = largest
        self._slack_s = slack_s
        self._tolerance = tolerance
        self._smoothing = smoothing
        self._window = window
        self._limit = float(initial)
        self._least_s = math.inf
        self._samples: list[float] = []
        self._most_in_flight = 0

    @property
    def value(self) -> int:
        return int(self._limit)

    def add(self, latency_s: float, in_flight: int) -> None:
        """One sample, and how much was in hand when it was taken."""
        self._samples.append(latency_s)
        self._most_in_flight = max(self._most_in_flight, in_flight)
        if len(self._samples) >= self._window:
            self._look(sorted(self._samples)[len(self._samples) // 2], self._most_in_flight)
            self._samples.clear()
            self._most_in_flight = 0

    def _look(self, median_s: float, most_in_flight: int) -> None:
        self._least_s = min(self._least_s, median_s)
        if most_in_flight < self._limit / 2:
            return  # it holds nobody back, so that what is measured says nothing of it
        tolerated_s = self._tolerance * self._least_s + self._slack_s
        gradient = max(0.5, min(1.0, tolerated_s / median_s)) if median_s > 0 else 1.0
        target = gradient * self._limit + math.sqrt(self._limit)
        smoothed = (1 - self._smoothing) * self._limit + self._smoothing * target
        self._limit = max(float(self._smallest), min(float(self._largest), smoothed))

"""A quantile of what was measured last: where a wait begins to be longer than usual. Pure; no clock."""

from __future__ import annotations

import math
from collections import deque


class RollingQuantile:
    """The nearest-rank quantile `share` (0 to 1) of the last `window` values, looked at again every `every` of them.

    A sort of 256 numbers takes 10 us, so that the mean cost of a value is under half a microsecond.
    """

    def __init__(self, share: float, window: int = 256, every: int = 32) -> None:
        self.value: float | None = None  # until `every` values have come
        self._share = share
        self._every = every
        self._values: deque[float] = deque(maxlen=window)
        self._num_new = 0

    def add(self, value: float) -> None:
        self._values.append(value)
        self._num_new += 1
        if self._num_new >= self._every:
            self._num_new = 0
            ordered = sorted(self._values)
            self.value = ordered[max(0, math.ceil(self._share * len(ordered)) - 1)]

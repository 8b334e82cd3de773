"""What a decode step takes as a function of its rows, those of drafts included, learnt step by step.

Seconds are a base, a time per context token, and a time per row that differs between octaves of the row's place: the
first rows more may cost next to nothing where weights have to be read anyway, later ones in full. Machines drift by a
tenth within minutes, so that a step with drafts says little beside one of a minute ago, and much beside its neighbour
without. A Kalman filter makes that comparison: of each step a drift that scales all parts alike is expected, hardly one
of a single part. So a step alone moves the common scale, and what differs between neighbours moves the time of a row.

Source: Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960; Huber, "Robust Estimation of a
Location Parameter", 1964 (the bound on what one step may say).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from core_engine.llm.step_time import StepTime

Array = npt.NDArray[np.float64]

EDGES = (0, 2, 4, 8, 16, 32, 64, 128, 256, 1 << 24)  # rows; between two edges each takes as long as the other
LEAST_SHARE = 0.01  # of the shortest step: what a row is thought to take at the least before any was seen
SCALE_SD, PART_SD = 0.5, 0.3  # of the calibration, relatively: how wrong it may be of all parts alike, and of each
LEAST = 0.001  # of the calibration: no part is thought to take less
# Relative as well. Steps on two virtual cores: 1 to 5 % of noise, and one in twenty is held up by milliseconds.
NOISE_SD = 0.03
MOST_OFF = 1.5  # standard deviations: no step is thought to be longer by more, while none is shorter without a reason
SCALE_DRIFT_SD = 0.02  # from one step to the next
FORGOTTEN = 0.001  # of what is known, with each step: what is never seen stays as unknown as at the start


class StepCost:
    """Starts from what `calibration` says of a decode row."""

    def __init__(self, calibration: StepTime) -> None:
        least_s = LEAST_SHARE * calibration.shortest()
        rows_s = [max(calibration.c, least_s)] * (len(EDGES) - 1)
        self._parts = np.array([max(calibration.a, least_s), calibration.d, *rows_s])  # in seconds
        self._starts = np.array([0, 0, *EDGES[:-1]], dtype=np.float64)  # the first two are no rows
        self._widths = np.array([0, 0, *np.diff(EDGES)], dtype=np.float64)
        size = len(self._parts)
        self._values = np.ones(size)  # of each part, in multiples of the calibration's
        self._covariance: Array = SCALE_SD**2 * np.ones((size, size)) + PART_SD**2 * np.eye(size)
        self._renewed = FORGOTTEN * self._covariance

    def plain_s(self, num_rows: int, context_tokens: int) -> float:
        """Seconds of a step with so many rows, whose sequences have so many tokens."""
        return float(self._terms(num_rows, context_tokens) @ self._values)

    def drafts_s(self, num_rows: int, most: int) -> list[float]:
        """Seconds that 0, 1, ... `most` rows add to a step that has `num_rows`."""
        at_edges = np.cumsum(self._parts * self._values * self._widths)[1:]
        added = np.interp(np.arange(num_rows, num_rows + most + 1), EDGES, at_edges)
        seconds: list[float] = (added - added[0]).tolist()
        return seconds

    def observe(self, num_rows: int, context_tokens: int, seconds: float) -> None:
        """Such a step took `seconds`; of one that no clock could measure nothing is learnt."""
        if not 0 < seconds < math.inf:
            return
        terms = self._terms(num_rows, context_tokens)
        expected_s = float(terms @ self._values)
        terms /= expected_s
        drift = SCALE_DRIFT_SD * self._values
        covariance = self._covariance
        covariance *= 1 - FORGOTTEN
        covariance += self._renewed
        covariance += np.multiply.outer(drift, drift)
        spread = covariance @ terms
        variance = float(terms @ spread) + NOISE_SD**2
        off = min(seconds / expected_s - 1, MOST_OFF * math.sqrt(variance))
        self._values = np.maximum(LEAST, self._values + spread * (off / variance))
        covariance -= np.multiply.outer(spread, spread / variance)

    def _terms(self, num_rows: int, context_tokens: int) -> Array:
        """Seconds that the calibration gives each part of such a step."""
        num_each: Array = np.minimum(np.maximum(num_rows - self._starts, 0.0), self._widths)
        num_each[0], num_each[1] = 1.0, context_tokens
        num_each *= self._parts
        return num_each

"""Fits the step-time model to the steps that an engine sees, and to those that `calibration` measures. numpy, no torch.

Least squares on relative errors with no coefficient below zero, over a window of the last steps, pulled towards the
stored calibration times the median ratio of seen to predicted time. How hard it is pulled follows from the noise: a
direction that the window's shapes do not vary in keeps the calibration's proportions, one that they do is theirs.
A neighbour on the machine only ever adds time, to a few steps or to many, so that large errors weigh less.

Sources: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23 (non-negative); Huber, "Robust Estimation
of a Location Parameter", 1964 (weights); Hoerl and Kennard, "Ridge Regression", 1970 (the pull).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from core_engine.llm.step_time import StepShape, StepTime

Array = npt.NDArray[np.float64]

WINDOW = 384  # steps
REFIT_EVERY = 32  # steps; a refit takes about half a millisecond
PRIOR_SD = 0.5  # of the online fit
UNSEEN_SHARE = 0.05  # of a step: what a coefficient that the calibration has at zero may well be worth
LEAST_NOISE = 1e-6  # relative; keeps the pull above rounding where the window has no noise at all
SOLVABLE = 1e-12  # of the trace: the least pull with which float64 still solves it
HUBER = 1.345  # in standard deviations; 95 % as good as plain least squares where errors are normal
ROUNDS = 8  # of reweighting
MOST_S = 59.0  # what a `StepTime` takes


class StepTimeFit:
    """Starts from `calibration`; `observe` every step, read `current`. Deterministic: time is only what it is told."""

    def __init__(self, calibration: StepTime) -> None:
        self.current = calibration
        self._calibration = calibration
        self._terms = np.zeros((WINDOW, 5))
        self._seconds = np.zeros(WINDOW)
        self._num_seen = 0

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step of `shape` took `seconds`. One without sequences, or that no clock could measure, teaches nothing."""
        if not shape.sequences or not 0 < seconds < np.inf:
            return
        at = self._num_seen % WINDOW
        self._terms[at] = _terms(shape)
        self._seconds[at] = seconds
        self._num_seen += 1
        if self._num_seen % REFIT_EVERY == 0:
            held = min(self._num_seen, WINDOW)
            self.current = fit(self._calibration, self._terms[:held], self._seconds[:held])


def fit_shapes(
    calibration: StepTime, shapes: list[StepShape], seconds: list[float], prior_sd: float = PRIOR_SD
) -> StepTime:
    """The coefficients that `shapes` and their `seconds` speak for, starting from `calibration`; see `fit`."""
    return fit(calibration, np.array([_terms(shape) for shape in shapes]), np.array(seconds), prior_sd)


def fit(calibration: StepTime, terms: Array, seconds: Array, prior_sd: float = PRIOR_SD) -> StepTime:
    """`terms` [num_steps, 5], in the order of the coefficients; `seconds` [num_steps], all above zero.

    `prior_sd` says how far, relatively, a coefficient may well be from the scaled calibration; infinite, it has no say.
    """
    prior = np.array(calibration.coefficients)
    prior *= _ratio(terms @ prior, seconds)
    unit = np.maximum(prior, _unseen_units(terms, seconds))  # in units of it, every unknown is about one
    rows = terms / seconds[:, None] * unit
    solved = _robust(rows, prior / unit, prior_sd) * unit
    return StepTime.of(np.minimum(solved, MOST_S).tolist(), calibration.source)


def _terms(shape: StepShape) -> tuple[float, float, float, float, float]:
    return (1.0, shape.prefill_tokens, shape.decode_rows, shape.decode_context_tokens, shape.attended_pairs)


def _ratio(predicted: Array, seconds: Array) -> float:
    """How much slower than predicted the median step is; 1 where the calibration predicts nothing."""
    known = predicted > 0
    return float(np.median(seconds[known] / predicted[known])) if known.any() else 1.0


def _unseen_units(terms: Array, seconds: Array) -> Array:
    """[5]: per coefficient, the seconds that would make it `UNSEEN_SHARE` of the steps that have most of its term."""
    most = np.max(terms / seconds[:, None], axis=0)
    return np.where(most > 0, UNSEEN_SHARE / np.where(most > 0, most, 1.0), np.finfo(np.float64).tiny)


def _robust(rows: Array, prior: Array, prior_sd: float) -> Array:
    """The x >= 0 with `rows @ x` near one and `x` near `prior`, reweighted by its own errors."""
    weights: Array = np.ones(len(rows))
    noise = 1.0  # before anything is known of the errors, the prior weighs much
    solved: Array = prior
    for _ in range(ROUNDS):
        pull = (max(noise, LEAST_NOISE) / prior_sd) ** 2
        weighted = rows * weights[:, None]
        gram: Array = rows.T @ weighted
        pull = max(pull, SOLVABLE * float(np.trace(gram)))
        solved = nonnegative(gram + pull * np.eye(5), weighted.sum(axis=0) + pull * prior)
        off = np.abs(rows @ solved - 1)
        noise = 1.4826 * float(np.median(off))  # of normal errors, the standard deviation
        weights[:] = np.minimum(1.0, HUBER * max(noise, LEAST_NOISE) / np.maximum(off, LEAST_NOISE))
    return solved


def nonnegative(gram: Array, moment: Array) -> Array:
    """The x >= 0 that minimises x'Gx / 2 - m'x; `gram` is positive definite.

    Where the plain minimum has a negative part, every set of unknowns that may be above zero is tried: 30 of them.
    """
    size = len(moment)
    solved: Array = np.asarray(np.linalg.solve(gram, moment), dtype=np.float64)
    if solved.min() >= 0:
        return solved
    best, best_value = np.zeros(size), 0.0
    for kept in (list(subset) for count in range(1, size) for subset in combinations(range(size), count)):
        part = np.linalg.solve(gram[np.ix_(kept, kept)], moment[kept])
        value = -0.5 * float(moment[kept] @ part)  # of the minimum over this set
        if part.min() >= 0 and value < best_value:
            best, best_value = np.zeros(size), value
            best[kept] = part
    return best

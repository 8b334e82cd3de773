"""How good each rung is on months it never saw: AUC with an interval, and calibration.

Flights of one day share their weather and their queues, so the interval resamples days, not flights: resampling
flights would make it several times too narrow.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 200
NUM_BINS = 10
CONFIDENCE = 0.95


class RungQuality(msgspec.Struct, frozen=True, kw_only=True):
    """`auc_low` and `auc_high` bound the middle 95 % of the resampled AUCs. `ece` is the expected calibration error:
    the mean distance of predicted from seen rate over ten bins of equal count, weighted by count."""

    auc: float
    auc_low: float
    auc_high: float
    mean_predicted: float
    ece: float


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Every rung on the same held-out flights. `num_without_label` are cancelled or diverted: they are in none of the
    figures. `rate` is the share that was late."""

    first_day: str
    last_day: str
    num_days: int
    num_flights: int
    num_without_label: int
    rate: float
    model: RungQuality
    student: RungQuality
    prior: RungQuality


def auc(
    labels: npt.NDArray[np.bool_], scores: npt.NDArray[np.floating[Any]], weights: npt.NDArray[Any] | None = None
) -> float:
    """The chance that a random positive scores above a random negative, ties counting half; NaN without both.

    All arrays [num_rows]. Exact: pairs are counted by group of equal score, not sampled.
    Source: Mann and Whitney 1947; Hanley and McNeil 1982, https://doi.org/10.1148/radiology.143.1.7063747
    """
    _, group = np.unique(scores, return_inverse=True)
    return _grouped_auc(labels, group, np.ones(len(labels)) if weights is None else weights)


def _grouped_auc(labels: npt.NDArray[np.bool_], group: npt.NDArray[np.intp], weights: npt.NDArray[Any]) -> float:
    """`group` [num_rows] is the rank of a row's score among the distinct scores."""
    positive = np.bincount(group, weights * labels)
    negative = np.bincount(group, weights * ~labels)
    pairs = positive.sum() * negative.sum()
    if pairs == 0:
        return float("nan")
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs)


def auc_interval(
    labels: npt.NDArray[np.bool_],
    scores: npt.NDArray[np.floating[Any]],
    days: npt.NDArray[Any],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """The middle 95 % of the AUC under resampling of `days` [num_rows] with replacement.

    Source: Field and Welsh 2007, Bootstrapping clustered data, https://doi.org/10.1111/j.1467-9868.2007.00593.x
    """
    _, group = np.unique(scores, return_inverse=True)
    distinct, day = np.unique(days, return_inverse=True)
    draws = np.random.default_rng(seed).multinomial(
        len(distinct), np.full(len(distinct), 1 / len(distinct)), size=num_resamples
    )
    aucs = [_grouped_auc(labels, group, draw[day]) for draw in draws]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(aucs, [tail, 1 - tail])
    return float(low), float(high)


def calibration_error(labels: npt.NDArray[np.bool_], scores: npt.NDArray[np.floating[Any]]) -> float:
    """Expected calibration error over `NUM_BINS` bins of equal count; equal scores may share a bin."""
    order = np.argsort(scores, kind="stable")
    bins = np.array_split(order, NUM_BINS)
    gaps = [abs(float(scores[b].mean()) - float(labels[b].mean())) * len(b) for b in bins if len(b)]
    return sum(gaps) / len(scores)


def rung_quality(
    labels: npt.NDArray[np.bool_], scores: npt.NDArray[np.floating[Any]], days: npt.NDArray[Any]
) -> RungQuality:
    low, high = auc_interval(labels, scores, days)
    return RungQuality(
        auc=auc(labels, scores),
        auc_low=low,
        auc_high=high,
        mean_predicted=float(scores.mean(dtype=np.float64)),
        ece=calibration_error(labels, scores),
    )

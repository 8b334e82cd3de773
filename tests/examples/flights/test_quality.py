from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights.quality import auc, auc_interval, calibration_error, rung_quality

SCORED = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=40)


def brute_force(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float:
    """Every pair of a positive and a negative."""
    won = total = 0.0
    for i in np.flatnonzero(labels):
        for j in np.flatnonzero(~labels):
            pair = float(weights[i] * weights[j])
            total += pair
            won += pair * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return won / total if total else float("nan")


class TestAuc:
    @given(rows=SCORED, seed=st.integers(0, 99))
    def test_it_counts_every_pair_and_ties_half(self, rows: list[tuple[bool, int]], seed: int) -> None:
        labels, scores = np.array([r[0] for r in rows]), np.array([r[1] / 6 for r in rows], dtype=np.float32)
        weights = np.random.default_rng(seed).integers(0, 4, len(rows))
        ones = np.ones(len(rows))
        assert auc(labels, scores) == pytest.approx(brute_force(labels, scores, ones), nan_ok=True)
        assert auc(labels, scores, weights) == pytest.approx(brute_force(labels, scores, weights), nan_ok=True)

    @given(rows=SCORED)
    def test_a_weight_is_a_repetition(self, rows: list[tuple[bool, int]]) -> None:
        labels, scores = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
        weights = np.arange(len(rows)) % 3
        repeated = auc(np.repeat(labels, weights), np.repeat(scores, weights))
        assert auc(labels, scores, weights) == pytest.approx(repeated, nan_ok=True)

    def test_known_values(self) -> None:
        labels = np.array([False, False, True, True])
        assert auc(labels, np.array([0.1, 0.2, 0.3, 0.4])) == 1.0
        assert auc(labels, np.array([0.4, 0.3, 0.2, 0.1])) == 0.0
        assert auc(labels, np.full(4, 0.5)) == 0.5
        assert auc(labels, np.array([0.1, 0.4, 0.35, 0.8])) == 0.75

    def test_without_both_classes_there_is_none(self) -> None:
        assert math.isnan(auc(np.ones(3, dtype=bool), np.arange(3.0)))


def days_of_one_mind(num_days: int, per_day: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flights of a day share their label: as many independent facts as days."""
    rng = np.random.default_rng(1)
    by_day = rng.random(num_days) < 0.5
    scores = np.repeat(by_day * 0.5 + rng.normal(0, 1, num_days), per_day)
    return np.repeat(by_day, per_day), scores, np.repeat(np.arange(num_days), per_day)


class TestInterval:
    def test_it_is_the_same_every_time_and_holds_the_estimate(self) -> None:
        labels, scores, days = days_of_one_mind(60, 20)
        low, high = auc_interval(labels, scores, days)
        assert (low, high) == auc_interval(labels, scores, days)
        assert low < auc(labels, scores) < high

    def test_days_are_resampled_not_flights(self) -> None:
        """With flights as independent facts the same data would seem four times as certain."""
        labels, scores, days = days_of_one_mind(60, 20)
        by_day = np.subtract(*auc_interval(labels, scores, days)[::-1])
        by_flight = np.subtract(*auc_interval(labels, scores, np.arange(len(days)))[::-1])
        assert by_day > 3 * by_flight

    def test_resamples_without_both_classes_are_left_out(self) -> None:
        labels, scores, days = np.array([True, False]), np.array([0.9, 0.1]), np.array([0, 1])
        assert auc_interval(labels, scores, days) == (1.0, 1.0)


class TestCalibration:
    def test_what_happens_as_often_as_predicted_has_no_error(self) -> None:
        scores = np.repeat([0.25, 0.75], 100)
        labels = np.tile([True, False, False, False], 25).tolist() + np.tile([True, True, True, False], 25).tolist()
        assert calibration_error(np.array(labels), scores) == pytest.approx(0.0, abs=1e-12)

    def test_the_error_is_the_distance_of_the_rates(self) -> None:
        labels = np.tile([True, False], 100)
        assert calibration_error(labels, np.full(200, 0.9)) == pytest.approx(0.4)

    def test_a_rung_is_summed_up(self) -> None:
        labels, scores, days = days_of_one_mind(30, 10)
        summed = rung_quality(labels, scores, days)
        assert summed.auc == auc(labels, scores)
        assert (summed.auc_low, summed.auc_high) == auc_interval(labels, scores, days)
        assert summed.mean_predicted == pytest.approx(scores.mean())

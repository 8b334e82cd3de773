from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import Column, ColumnKind, Prior
from core_engine.scoring.prior import PriorTable
from core_engine.scoring.student import OnnxStudent
from core_engine.scoring.torch_scorer import load_scorer
from examples.flights.fitting import (
    SHRINKAGE,
    check_extra,
    fit_booster,
    fit_prior,
    fit_scorer,
    fit_student,
    on_float32,
    with_absences,
)
from examples.flights.quality import auc
from examples.flights.training import Rows, Split

COLUMNS = (
    Column(name="carrier", kind=ColumnKind.CATEGORY, source="carrier", values=("AA", "UA")),
    Column(name="hour", kind=ColumnKind.HOUR, source="departure"),
    Column(name="wind", kind=ColumnKind.NUMERIC, source="weather.wind"),
    Column(name="gust", kind=ColumnKind.NUMERIC, source="weather.gust"),
    Column(name="delay", kind=ColumnKind.NUMERIC, source="route.delay"),
)


def made_up_rows(num_rows: int = 4_000, seed: int = 3) -> Rows:
    """Flights that are late when it blows, more so with one carrier; some values absent."""
    rng = np.random.default_rng(seed)
    carrier, wind = rng.integers(0, 2, num_rows), rng.normal(10, 4, num_rows)
    chance = 1 / (1 + np.exp(-(wind - 12 + 2 * carrier) / 2))
    matrix = np.stack(
        [carrier, rng.integers(5, 23, num_rows) + 0.5, wind, rng.normal(0, 1, num_rows), np.ones(num_rows)], axis=1
    ).astype(np.float32)
    matrix[rng.random(num_rows) < 0.1, 3] = np.nan
    day = np.datetime64("2013-05-01") + np.arange(num_rows) // 100
    return Rows(matrix, rng.random(num_rows) < chance, day)


def silent(_done: int, _total: int) -> None:
    pass


class TestAbsences:
    def test_each_view_is_lost_as_a_whole_in_its_share_of_rows(self) -> None:
        rows = made_up_rows()
        lost = with_absences(rows, COLUMNS, 0.2).matrix
        is_new = np.isnan(lost) & ~np.isnan(rows.matrix)
        assert is_new[:, 2].mean() == pytest.approx(0.2, abs=0.03)
        np.testing.assert_array_equal(np.isnan(lost[is_new[:, 2]][:, 3]), True)
        assert is_new[:, 4].mean() == pytest.approx(0.2, abs=0.03)
        assert not np.array_equal(is_new[:, 2], is_new[:, 4])

    def test_inputs_are_never_lost_and_the_rows_given_stay_as_they_are(self) -> None:
        rows = made_up_rows()
        before = rows.matrix.copy()
        lost = with_absences(rows, COLUMNS, 1.0)
        np.testing.assert_array_equal(lost.matrix[:, :2], before[:, :2])
        np.testing.assert_array_equal(rows.matrix, before)
        assert lost.late is rows.late


class TestScorer:
    def test_it_learns_and_is_the_same_every_time(self, tmp_path: Path) -> None:
        train, test = made_up_rows(), made_up_rows(seed=4)
        first, again = (fit_scorer(train, COLUMNS, tmp_path / name, silent, 4) for name in ("a", "b"))
        assert first.sha256 == again.sha256
        scores = load_scorer(first.path, first.sha256).score(test.matrix)
        assert auc(test.late, scores) > 0.75
        assert scores.mean() == pytest.approx(test.late.mean(), abs=0.05)

    def test_progress_is_told_epoch_by_epoch(self, tmp_path: Path) -> None:
        told: list[tuple[int, int]] = []
        fit_scorer(made_up_rows(200), COLUMNS, tmp_path / "s", lambda done, total: told.append((done, total)), 3)
        assert told == [(1, 3), (2, 3), (3, 3)]

    def test_a_column_without_spread_or_values_does_no_harm(self, tmp_path: Path) -> None:
        rows = made_up_rows(500)
        rows.matrix[:, 3] = np.nan
        artifact = fit_scorer(rows, COLUMNS, tmp_path / "s", silent, 1)
        assert np.isfinite(load_scorer(artifact.path, artifact.sha256).score(rows.matrix)).all()

    def test_the_process_keeps_its_threads_and_its_random_state(self, tmp_path: Path) -> None:
        threads, state = torch.get_num_threads(), torch.get_rng_state()
        fit_scorer(made_up_rows(200), COLUMNS, tmp_path / "s", silent, 1)
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)


class TestStudent:
    def test_the_onnx_form_scores_as_lightgbm_does_also_with_absent_values(self, split: Split, tmp_path: Path) -> None:
        """On real rows, whole and with a random half of the values absent, and on a row of nothing."""
        rows = head(split.train, 30_000)
        artifact = fit_student(rows, tmp_path / "student.onnx", 40)
        student, booster = OnnxStudent(artifact), fit_booster(rows, 40)
        matrix = split.held_out.matrix[::4].copy()
        np.testing.assert_allclose(student.score_batch(matrix), booster.predict(matrix), rtol=0, atol=1e-6)
        matrix[np.random.default_rng(0).random(matrix.shape) < 0.5] = np.nan
        matrix[0] = np.nan
        np.testing.assert_allclose(student.score_batch(matrix), booster.predict(matrix), rtol=0, atol=1e-6)
        flooring = on_float32(booster)
        np.testing.assert_array_equal(flooring.predict(matrix), booster.predict(matrix))
        assert student.score(matrix[5]) == pytest.approx(float(booster.predict(matrix[5:6])[0]), abs=1e-6)

    def test_the_same_rows_give_the_same_file(self, tmp_path: Path) -> None:
        first, again = (fit_student(made_up_rows(), tmp_path / name, 10) for name in ("a.onnx", "b.onnx"))
        assert first.sha256 == again.sha256

    @pytest.mark.parametrize("name", ["lightgbm", "onnxmltools"])
    def test_a_missing_extra_is_one_sentence_that_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        check_extra()
        monkeypatch.setitem(sys.modules, name, None)  # Python's own way to say that a module is not to be had
        with pytest.raises(ConfigurationError, match=rf"trains with {name}, .*pip install 'headrace\[demo\]'"):
            check_extra()


class TestPrior:
    def test_rates_are_drawn_to_the_carriers_own(self, tmp_path: Path) -> None:
        rows = Rows(
            matrix=np.array([[0, 5.5, 0, 0, 0]] * 100 + [[0, 9.0, 0, 0, 0]] * 2, dtype=np.float32),
            late=np.array([True] * 50 + [False] * 50 + [True] * 2),
            day=np.full(102, np.datetime64("2013-05-01")),
        )
        artifact, fallback = fit_prior(rows, COLUMNS, tmp_path / "prior.json")
        rates = msgspec.json.decode(Path(artifact.path).read_bytes())
        carrier = (52 + SHRINKAGE * fallback) / (102 + SHRINKAGE)
        assert fallback == pytest.approx(52 / 102)
        assert set(rates) == {"AA-5", "AA-9"}
        assert rates["AA-5"] == pytest.approx((50 + SHRINKAGE * carrier) / (100 + SHRINKAGE), abs=1e-6)
        assert rates["AA-9"] == pytest.approx((2 + SHRINKAGE * carrier) / (2 + SHRINKAGE), abs=1e-6)

    def test_the_ladder_finds_every_rate_that_was_written(self, tmp_path: Path) -> None:
        rows = made_up_rows()
        artifact, _ = fit_prior(rows, COLUMNS, tmp_path / "prior.json")
        table = PriorTable(Prior(artifact=artifact, segment=("carrier", "hour"), fallback=-1.0), COLUMNS)
        assert all(0 <= table.rate(row) <= 1 for row in rows.matrix)


def head(rows: Rows, num_rows: int) -> Rows:
    """Every n-th row, so that all months are in it."""
    step = len(rows.late) // num_rows
    return replace(rows, matrix=rows.matrix[::step], late=rows.late[::step], day=rows.day[::step])

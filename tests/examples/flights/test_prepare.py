"""From data files to declarations: on a tenth of the flights here, on all of them in the slow test."""

from __future__ import annotations

import zipfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from core_engine.predictors.declaration import Prior, TorchScorer
from core_engine.predictors.inputs import check_inputs
from core_engine.predictors.rungs import load_rungs
from core_engine.scoring.encoding import RowEncoder
from core_engine.scoring.prior import PriorTable
from core_engine.scoring.torch_scorer import load_scorer
from examples.flights.clock import WEEK
from examples.flights.data import RawTables, connect, data_dir
from examples.flights.fitting import fit_prior, fit_scorer
from examples.flights.predictors import SEGMENT
from examples.flights.prepare import Prepared, prepare
from examples.flights.quality import auc, auc_interval
from examples.flights.training import LEAD, Split
from examples.flights.upcoming import UpcomingFlight, upcoming_flights

NOW = datetime(2026, 11, 30, 15, 42, 7, tzinfo=UTC)
STAGES = ["read flights", "build features", "join features", "train scorer", "train student", "measure quality"]
STAGES += ["train arrival_delay"]


@pytest.fixture(scope="module")
def source(raw: RawTables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files with every tenth flight."""
    folder = tmp_path_factory.mktemp("source")
    with connect() as db:
        db.register("flights", raw.flights.take(pa.array(np.arange(0, raw.flights.num_rows, 10))))
        db.execute(f"COPY flights TO '{folder}/flights.csv' (HEADER, NULLSTR 'NA')")
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.write(folder / "flights.csv", "flights.csv")
    for name in ("weather.csv", "airports.csv"):
        (folder / name).write_bytes((data_dir() / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def prepared(source: Path, work_dir: Path) -> Prepared:
    return prepare(work_dir, NOW, source=source)


class TestBuild:
    def test_every_rung_loads_and_answers_a_real_request(self, prepared: Prepared) -> None:
        rungs = load_rungs(prepared.delay_risk)
        assert rungs.faults == {}
        assert rungs.encoder is not None
        assert rungs.student is not None
        assert rungs.prior is not None
        scorer = load_scorer(*scorer_file(prepared))
        flight = upcoming_flights(prepared, NOW, 1)[0]
        row = rungs.encoder.encode(check_inputs(prepared.delay_risk, flight.inputs))
        answers = [float(scorer.score(row.reshape(1, -1))[0]), rungs.student.score(row), rungs.prior.rate(row)]
        assert all(0 < answer < 1 for answer in answers)

    def test_views_and_flights_lie_where_they_are_said_to(self, prepared: Prepared) -> None:
        assert prepared.flights_path.exists()
        assert [Path(view.source.path).exists() for view in prepared.views] == [True] * 4

    def test_quality_is_of_the_held_out_months(self, prepared: Prepared) -> None:
        quality = prepared.quality
        assert (quality.first_day, quality.last_day, quality.num_days) == ("2013-10-01", "2013-12-31", 92)
        assert quality.num_flights + quality.num_without_label > 8_000
        assert quality.model.auc_low <= quality.model.auc <= quality.model.auc_high

    def test_every_stage_is_timed(self, prepared: Prepared) -> None:
        assert list(prepared.seconds) == STAGES


def scorer_file(prepared: Prepared) -> tuple[str, str]:
    model = prepared.delay_risk.model
    assert isinstance(model, TorchScorer)
    return model.artifact.path, model.artifact.sha256


class TestCache:
    def test_a_second_run_builds_nothing_and_gives_the_same(
        self, prepared: Prepared, source: Path, work_dir: Path
    ) -> None:
        def tell(stage: str, _done: int, _total: int) -> None:
            raise AssertionError(f"{stage} ran again")

        again = prepare(work_dir, NOW, tell, source=source)
        assert again.from_cache
        assert not prepared.from_cache
        assert again.delay_risk.fingerprint == prepared.delay_risk.fingerprint
        assert (again.quality, again.views, again.seconds) == (prepared.quality, prepared.views, prepared.seconds)

    def test_the_cache_does_not_hold_the_clock(self, prepared: Prepared, source: Path, work_dir: Path) -> None:
        later = prepare(work_dir, NOW + WEEK, source=source)
        assert later.from_cache
        assert later.clock.shift == prepared.clock.shift + WEEK

    def test_a_broken_file_is_built_again_to_the_same_bytes(self, source: Path, tmp_path: Path) -> None:
        first = prepare(tmp_path, NOW, source=source)
        path, _ = scorer_file(first)
        Path(path).write_bytes(b"broken")
        told: list[tuple[str, int, int]] = []
        again = prepare(tmp_path, NOW, lambda *step: told.append(step), source=source)
        assert not again.from_cache
        assert again.delay_risk.fingerprint == first.delay_risk.fingerprint
        assert list(dict.fromkeys(stage for stage, _, _ in told)) == STAGES
        assert all(0 <= done <= total for _, done, total in told)
        last = {stage: (done, total) for stage, done, total in told}
        assert all(done == total for done, total in last.values())


class TestUpcoming:
    def test_the_flights_next_due_in_order_from_two_hours_ahead(self, prepared: Prepared) -> None:
        due = upcoming_flights(prepared, NOW, 500)
        departures = [flight.scheduled_departure for flight in due]
        assert len(due) == 500
        assert departures == sorted(departures)
        assert NOW + LEAD <= departures[0] < NOW + LEAD + timedelta(hours=3)
        table = pyarrow.parquet.read_table(prepared.flights_path)
        first = np.datetime64(prepared.clock.to_data(NOW + LEAD).replace(tzinfo=None))
        assert (table["scheduled_departure"].to_numpy() >= first).sum() > 500

    def test_a_flight_exactly_two_hours_ahead_is_due(self, prepared: Prepared) -> None:
        first = upcoming_flights(prepared, NOW, 1)[0].scheduled_departure
        assert upcoming_flights(prepared, first - LEAD, 1)[0].scheduled_departure == first
        just_after = first - LEAD + timedelta(microseconds=1)
        assert upcoming_flights(prepared, just_after, 1)[0].scheduled_departure > first

    def test_now_in_another_offset_is_the_same_now(self, prepared: Prepared) -> None:
        elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
        assert upcoming_flights(prepared, elsewhere, 5) == upcoming_flights(prepared, NOW, 5)

    def test_requests_fit_the_declaration_on_the_airports_own_clock(self, prepared: Prepared) -> None:
        encoder = RowEncoder(prepared.delay_risk.columns)
        for flight in upcoming_flights(prepared, NOW, 50):
            row = encoder.encode(check_inputs(prepared.delay_risk, flight.inputs))
            assert flight.scheduled_departure.utcoffset() == timedelta(hours=-5)
            assert row[3] == pytest.approx(flight.scheduled_departure.hour + flight.scheduled_departure.minute / 60)
            assert not np.isnan(row[:6]).any()
            assert flight.name.split()[0] == flight.inputs["carrier"]

    def test_the_outcome_is_beside_the_request_not_in_it(self, prepared: Prepared) -> None:
        due = upcoming_flights(prepared, NOW)
        assert {flight.late for flight in due} >= {True, False}
        assert set(due[0].inputs) == {"carrier", "origin", "dest", "scheduled_departure", "distance"}
        assert isinstance(due[0], UpcomingFlight)

    def test_at_the_end_of_the_year_there_are_fewer(self, prepared: Prepared) -> None:
        assert upcoming_flights(prepared, NOW + 8 * WEEK) == ()


def test_the_models_interval_lies_above_the_priors_auc(split: Split, tmp_path: Path) -> None:
    """On all held-out flights, trained for one epoch; the slow test has the real build."""
    train, rows = split.train, split.held_out
    scorer = fit_scorer(train, split.columns, tmp_path / "scorer", lambda _done, _total: None, 1)
    artifact, fallback = fit_prior(train, split.columns, tmp_path / "prior")
    prior = PriorTable(Prior(artifact=artifact, segment=SEGMENT, fallback=fallback), split.columns)
    low, high = auc_interval(rows.late, load_scorer(scorer.path, scorer.sha256).score(rows.matrix), rows.day)
    prior_auc = auc(rows.late, np.array([prior.rate(row) for row in rows.matrix]))
    assert 0.6 < prior_auc < low < high < 0.8


@pytest.mark.slow
def test_the_whole_year(tmp_path: Path) -> None:
    """The real thing, cold: quality as the README prints it."""
    prepared = prepare(tmp_path, NOW)
    quality = prepared.quality
    assert quality.model.auc_low > quality.prior.auc
    assert quality.student.auc_low > quality.prior.auc
    assert quality.model.auc > 0.7
    assert max(quality.model.ece, quality.student.ece, quality.prior.ece) < 0.05
    assert len(upcoming_flights(prepared, NOW)) == 500

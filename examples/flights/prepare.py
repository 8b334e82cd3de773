"""All of the example before it is served: data -> features -> training -> quality, cached; then the declarations.

`headrace` calls `prepare` once and `upcoming_flights` for the requests; it loads the views online itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from core_engine.predictors.declaration import Artifact, Predictor, Prior
from core_engine.scoring.prior import PriorTable
from core_engine.scoring.student import OnnxStudent
from core_engine.scoring.torch_scorer import load_scorer
from examples.flights import cache
from examples.flights.arrival import AT_DEPARTURE, arrival_delay, departed
from examples.flights.clock import ShiftedClock, shifted_clock
from examples.flights.data import data_dir, normalise, read_raw
from examples.flights.features import build_history, feature_views, write_history
from examples.flights.fitting import NUM_EPOCHS, check_extra, fit_prior, fit_scorer, fit_student, with_absences
from examples.flights.predictors import (
    SEGMENT,
    Artifacts,
    Categories,
    delay_risk,
    flight_notice,
    route_brief,
)
from examples.flights.quality import Quality, rung_quality
from examples.flights.route_risk import route_risk
from examples.flights.training import Split, build_split
from featurestore.definitions import FeatureView

Progress = Callable[[str, int, int], None]  # stage, done, total

SCORER, STUDENT, PRIOR = ".safetensors", ".onnx", "_prior.json"  # after a predictor's name
FLIGHTS, SUMMARY = "flights.parquet", "summary.json"
ARRIVAL_EPOCHS, ARRIVAL_TREES = 3, 100  # one column says most of it
_DATA_FILES = ("flights.csv.zip", "weather.csv", "airports.csv")
_RECIPE = (
    *(f"examples.flights.{m}" for m in ("data", "features", "predictors", "training", "fitting", "quality", "prepare")),
    "examples.flights.arrival",
    *(f"core_engine.scoring.{m}" for m in ("encoding", "torch_scorer", "student", "prior")),
    *(f"featurestore.offline.{m}" for m in ("store", "timeline", "source", "source_schema", "spine")),
)
_PACKAGES = ("torch", "lightgbm", "onnxmltools", "onnxruntime", "numpy", "duckdb", "pyarrow")


class Fitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the declaration of `arrival_delay` needs beside its files, and how good it is."""

    categories: Categories
    prior_fallback: float
    quality: Quality


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a build leaves beside its files: what the declarations need, what was measured, seconds by stage."""

    categories: Categories
    prior_fallback: float
    quality: Quality
    arrival: Fitted
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The example, ready to be registered, materialized and served under `clock`.

    `flights_path` holds `data.FlightData.flights`, in data time. `seconds` are those of the build, also where it came
    from the cache.
    """

    views: tuple[FeatureView, ...]
    delay_risk: Predictor
    arrival_delay: Predictor
    route_risk: Predictor
    flight_notice: Predictor
    clock: ShiftedClock
    quality: Quality
    arrival_quality: Quality
    flights_path: Path
    seconds: Mapping[str, float]
    from_cache: bool

    @property
    def predictors(self) -> tuple[Predictor, ...]:
        return self.delay_risk, self.arrival_delay, self.route_risk, self.flight_notice, route_brief()


def _silent(_stage: str, _done: int, _total: int) -> None:
    """No progress wanted."""


def prepare(work_dir: Path, now: datetime, progress: Progress = _silent, source: Path | None = None) -> Prepared:
    """Build under `work_dir`, or take what an earlier run built from the same input. `now` is aware.

    `source` is the folder of the data files; None is that of the installed wheel.

    Raises:
        ConfigurationError: the data wheel or the demo extra is not installed.
    """
    clock = shifted_clock(now)
    source = source or data_dir()
    folder = built_folder(work_dir, source)
    from_cache = cache.is_intact(folder)
    if not from_cache:
        check_extra()
        cache.build(folder, lambda new: _build(new, source, progress))
    return _load(folder, clock, from_cache)


def built_folder(work_dir: Path, source: Path | None = None) -> Path:
    """Where `prepare` puts what this code makes of this data, whether it did already or not. Raises as it does."""
    source = source or data_dir()
    recipe = cache.fingerprint((source / name for name in _DATA_FILES), _RECIPE, _PACKAGES)
    return work_dir.resolve() / f"flights-{recipe[:16]}"


def _load(folder: Path, clock: ShiftedClock, from_cache: bool) -> Prepared:
    summary = msgspec.json.decode((folder / SUMMARY).read_bytes(), type=Summary)
    arrival = summary.arrival
    artifacts = _artifacts(folder, "delay_risk", summary.prior_fallback)
    return Prepared(
        views=feature_views(folder),
        delay_risk=delay_risk(summary.categories, artifacts),
        arrival_delay=arrival_delay(arrival.categories, _artifacts(folder, "arrival_delay", arrival.prior_fallback)),
        route_risk=route_risk(summary.categories, artifacts),
        flight_notice=flight_notice(),
        clock=clock,
        quality=summary.quality,
        arrival_quality=arrival.quality,
        flights_path=folder / FLIGHTS,
        seconds=summary.seconds,
        from_cache=from_cache,
    )


def _artifacts(folder: Path, predictor: str, prior_fallback: float) -> Artifacts:
    scorer, student, prior = (Artifact.of(folder / f"{predictor}{suffix}") for suffix in (SCORER, STUDENT, PRIOR))
    return Artifacts(scorer=scorer, student=student, prior=prior, prior_fallback=prior_fallback)


class _Stages:
    """Times and reports the stages of one build."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, num_steps: int = 1) -> Iterator[Callable[[int, int], None]]:
        start = time.monotonic()
        self._progress(name, 0, num_steps)
        yield partial(self._progress, name)
        self._progress(name, num_steps, num_steps)
        self.seconds[name] = round(time.monotonic() - start, 3)


def _build(folder: Path, source: Path, progress: Progress) -> None:
    stage = _Stages(progress)
    with stage("read flights"):
        data = normalise(read_raw(source))
        pyarrow.parquet.write_table(data.flights, folder / FLIGHTS)
    with stage("build features"):
        write_history(build_history(data), folder)
    with stage("join features"):
        split = build_split(data.flights, feature_views(folder))
    with stage("train scorer", NUM_EPOCHS) as on_progress:
        rows = with_absences(split.train, split.columns)
        scorer = fit_scorer(rows, split.columns, folder / f"delay_risk{SCORER}", on_progress)
    with stage("train student"):
        student = fit_student(rows, folder / f"delay_risk{STUDENT}")
        prior, fallback = fit_prior(split.train, split.columns, folder / f"delay_risk{PRIOR}")
    with stage("measure quality"):
        quality = measure(split, Artifacts(scorer=scorer, student=student, prior=prior, prior_fallback=fallback))
    with stage("train arrival_delay", ARRIVAL_EPOCHS) as on_progress:
        arrival = _build_arrival(folder, data.flights, on_progress)
    summary = Summary(
        categories=split.categories,
        prior_fallback=fallback,
        quality=quality,
        arrival=arrival,
        seconds=stage.seconds,
    )
    (folder / SUMMARY).write_bytes(msgspec.json.encode(summary))


def _build_arrival(folder: Path, flights: pa.Table, on_progress: Callable[[int, int], None]) -> Fitted:
    """The same three rungs for the question at departure."""
    split = build_split(departed(flights), feature_views(folder), AT_DEPARTURE)
    rows, at = with_absences(split.train, split.columns), folder / "arrival_delay"
    scorer = fit_scorer(rows, split.columns, Path(f"{at}{SCORER}"), on_progress, ARRIVAL_EPOCHS)
    student = fit_student(rows, Path(f"{at}{STUDENT}"), ARRIVAL_TREES)
    prior, fallback = fit_prior(split.train, split.columns, Path(f"{at}{PRIOR}"))
    artifacts = Artifacts(scorer=scorer, student=student, prior=prior, prior_fallback=fallback)
    return Fitted(categories=split.categories, prior_fallback=fallback, quality=measure(split, artifacts))


def measure(split: Split, artifacts: Artifacts) -> Quality:
    """Every rung as it will be served, from its file, on the held-out flights."""
    rows = split.held_out
    prior = PriorTable(
        Prior(artifact=artifacts.prior, segment=SEGMENT, fallback=artifacts.prior_fallback), split.columns
    )
    scores = {
        "model": load_scorer(artifacts.scorer.path, artifacts.scorer.sha256).score(rows.matrix),
        "student": OnnxStudent(artifacts.student).score_batch(rows.matrix),
        "prior": np.array([prior.rate(row) for row in rows.matrix]),
    }
    rungs = {name: rung_quality(rows.late, values, rows.day) for name, values in scores.items()}
    days = np.unique(rows.day)
    return Quality(
        first_day=str(days[0]),
        last_day=str(days[-1]),
        num_days=len(days),
        num_flights=len(rows.late),
        num_without_label=split.held_out_without_label,
        rate=float(rows.late.mean()),
        **rungs,
    )

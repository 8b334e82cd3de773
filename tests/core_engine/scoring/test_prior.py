from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from core_engine.errors import ConfigurationError, ModelFileError
from core_engine.predictors.declaration import Column, ColumnKind, Prior
from core_engine.scoring.artifact import write_artifact
from core_engine.scoring.prior import PriorTable

COLUMNS = (
    Column(name="distance", kind=ColumnKind.NUMERIC, source="distance"),
    Column(name="carrier", kind=ColumnKind.CATEGORY, source="carrier", values=("AA", "UA", "A-1")),
    Column(name="hour", kind=ColumnKind.HOUR, source="departure"),
)
RATES = {"AA-5": 0.1, "UA-17": 0.4, "A%2D1-0": 0.9}
FALLBACK = 0.25


def prior_of(tmp_path: Path, rates: object = RATES, segment: tuple[str, ...] = ("carrier", "hour")) -> Prior:
    artifact = write_artifact(tmp_path / "prior.json", msgspec.json.encode(rates))
    return Prior(artifact=artifact, segment=segment, fallback=FALLBACK)


def rate(table: PriorTable, *row: float) -> float:
    return table.rate(np.array(row, dtype=np.float32))


@pytest.fixture
def table(tmp_path: Path) -> PriorTable:
    return PriorTable(prior_of(tmp_path), COLUMNS)


def test_the_rate_is_that_of_the_segment_with_the_hour_floored(table: PriorTable) -> None:
    assert rate(table, 700, 0, 5.0) == 0.1
    assert rate(table, 700, 0, 5.99) == 0.1
    assert rate(table, np.nan, 1, 17.5) == 0.4


def test_segments_are_keyed_as_entities_are(table: PriorTable) -> None:
    assert rate(table, 0, 2, 0.0) == 0.9


@pytest.mark.parametrize("row", [(0, 0, 6.0), (0, -1, 5.0), (0, np.nan, 5.0), (0, 0, np.nan)])
def test_an_unseen_or_absent_segment_has_the_fallback(table: PriorTable, row: tuple[float, ...]) -> None:
    assert rate(table, *row) == FALLBACK


def test_one_part_is_a_segment_too(tmp_path: Path) -> None:
    table = PriorTable(prior_of(tmp_path, {"UA": 0.3}, ("carrier",)), COLUMNS)
    assert rate(table, 0, 1, 3.0) == 0.3


@pytest.mark.parametrize("segment", [("gate",), (), ("carrier", "gate")])
def test_a_segment_must_name_columns(tmp_path: Path, segment: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="must name columns among"):
        PriorTable(prior_of(tmp_path, segment=segment), COLUMNS)


def test_a_segment_takes_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="column distance is numeric"):
        PriorTable(prior_of(tmp_path, segment=("distance",)), COLUMNS)


@pytest.mark.parametrize("rates", [[0.1], {"AA-5": "high"}, {"AA-5": None}, 7])
def test_a_file_of_something_else_is_refused(tmp_path: Path, rates: object) -> None:
    with pytest.raises(ModelFileError, match="is not a JSON object of rates"):
        PriorTable(prior_of(tmp_path, rates), COLUMNS)


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_rate_outside_zero_to_one_is_refused_by_its_segment(tmp_path: Path, value: float) -> None:
    with pytest.raises(ModelFileError, match="the rate of 'AA-5'"):
        PriorTable(prior_of(tmp_path, {"AA-5": value}), COLUMNS)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "prior.json", b'{"AA-5": 0.1')
    with pytest.raises(ModelFileError, match="is not a JSON object of rates"):
        PriorTable(Prior(artifact=artifact, segment=("carrier", "hour"), fallback=FALLBACK), COLUMNS)
    with pytest.raises(ModelFileError, match="SHA-256"):
        PriorTable(
            Prior(artifact=msgspec.structs.replace(artifact, sha256="0" * 64), segment=("hour",), fallback=FALLBACK),
            COLUMNS,
        )

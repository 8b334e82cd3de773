"""The real year, read once per session; tests take slices of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from examples.flights.data import FlightData, RawTables, data_dir, normalise, read_raw
from examples.flights.features import build_history, feature_views, write_history
from examples.flights.training import Split, build_split
from featurestore.definitions import FeatureView


@pytest.fixture(scope="session")
def raw() -> RawTables:
    return read_raw(data_dir())


@pytest.fixture(scope="session")
def data(raw: RawTables) -> FlightData:
    return normalise(raw)


@pytest.fixture(scope="session")
def history(data: FlightData) -> dict[str, pa.Table]:
    return build_history(data)


@pytest.fixture(scope="session")
def views(history: dict[str, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureView, ...]:
    folder: Path = tmp_path_factory.mktemp("history")
    write_history(history, folder)
    return feature_views(folder)


@pytest.fixture(scope="session")
def split(data: FlightData, views: tuple[FeatureView, ...]) -> Split:
    return build_split(data.flights, views)

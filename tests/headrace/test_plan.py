from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy.orm import Session

from core_engine.predictors.declaration import Artifact, Predictor
from core_engine.predictors.plan import Plan, plan
from core_engine.predictors.registry import LIVE, Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from examples.flights.arrival import arrival_delay
from examples.flights.features import STREAMED, feature_views
from examples.flights.predictors import Artifacts, Categories, delay_risk, flight_notice, route_brief
from featurestore.definitions import FeatureView
from featurestore.registry import register_view
from headrace.migrations import upgrade
from headrace.plan import planned, show
from tests.core_engine.predictors.doubles import notice_predictor
from tests.headrace.test_cli import headrace

NOWHERE = Artifact(path="/nowhere", sha256="0" * 64)
CATEGORIES = Categories(carriers=("AA",), origins=("JFK",), dests=("LAX",))
ARTIFACTS = Artifacts(NOWHERE, NOWHERE, NOWHERE, prior_fallback=0.24)
EXAMPLE = (
    delay_risk(CATEGORIES, ARTIFACTS),
    arrival_delay(CATEGORIES, ARTIFACTS),
    route_brief(),
    flight_notice(),
)


def filled(folder: Path, *predictors: Predictor, views: tuple[FeatureView, ...] = (), alias: str = LIVE) -> Settings:
    """Settings of a state folder whose registry holds `predictors`."""
    settings = Settings(state_dir=folder)
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    registry = Registry(database)
    for predictor in predictors:
        registry.register(predictor)
        registry.set_alias(predictor.name, alias, predictor.version)
    with Session(database) as session, session.begin():
        for view in views:
            register_view(session, view)
    database.dispose()
    return settings


def shown(plans: list[tuple[Predictor, Plan]]) -> str:
    screen = io.StringIO()
    show(plans, Console(file=screen, width=400))
    return screen.getvalue()


@pytest.mark.parametrize(
    ("predictor", "mode", "also"),
    [
        (EXAMPLE[0], "online", ("batch",)),
        (EXAMPLE[1], "stream", ()),
        (EXAMPLE[2], "batch", ()),
        (EXAMPLE[3], "online", ()),
    ],
    ids=lambda value: value.name if isinstance(value, Predictor) else None,
)
def test_the_example_uses_all_three_paths(predictor: Predictor, mode: str, also: tuple[str, ...]) -> None:
    made = plan(predictor)
    assert (str(made.mode), tuple(map(str, made.also))) == (mode, also)


def test_the_table_says_everything_of_a_predictor_in_its_row(tmp_path: Path) -> None:
    lines = shown(planned(filled(tmp_path, *EXAMPLE))).splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert [row[0] for row in cells] == ["arrival_delay", "delay_risk", "flight_notice", "route_brief"]
    assert cells[1][:6] == ["delay_risk", "1", "online", "batch", "0 s", "50 ms"]
    assert cells[3][:6] == ["route_brief", "1", "batch", "-", "25 h", "30 s"]
    assert all(row[6].endswith(".") for row in cells)
    assert [row[7].split(":")[0] for row in cells] == ["latency", "latency", "latency", "throughput"]


def test_windows_are_what_a_stream_feeds(tmp_path: Path) -> None:
    settings = filled(tmp_path, EXAMPLE[0], views=feature_views(tmp_path))
    ((_, made),) = planned(settings)
    assert f"reading {STREAMED} as the stream has left it by then" in made.why


def test_only_live_predictors_are_planned(tmp_path: Path) -> None:
    assert planned(filled(tmp_path, notice_predictor(), alias="shadow")) == []


def test_an_empty_registry_is_one_sentence_of_the_command(tmp_path: Path) -> None:
    done = headrace("plan", state=tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "No predictor is live here: register one and point its alias `live` at a version.\n"


def test_the_command_prints_the_table(tmp_path: Path) -> None:
    filled(tmp_path, notice_predictor())
    done = headrace("plan", state=tmp_path, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "notice" in done.stdout
    assert "It is asked in conversations only" in done.stdout

"""No traffic goes to a version that cannot be served: against a real engine, and against none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, InvalidRequest, UnknownName
from core_engine.predictors.declaration import Artifact, FeatureUse, InputField, InputKind, Predictor, TorchScorer
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import EngineSettings, Settings
from featurestore.definitions import FeatureType, FeatureView, Field, ParquetSource
from featurestore.registry import register_view
from headrace import alias_moves
from headrace.alias_moves import history, point, registered, roll_back, take_away
from headrace.migrations import upgrade
from tests.core_engine.llm.running import Served, serve
from tests.core_engine.predictors.doubles import delay_predictor, notice_predictor

GOOD = TorchScorer(artifact=Artifact(path="/some/file", sha256="good"))  # what the tests' engine loads
BAD = TorchScorer(artifact=Artifact(path="/some/file", sha256="bad"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A registry with three sound versions of `delay`, one of a damaged file, one that needs more inputs, and text."""
    settings = Settings(state_dir=tmp_path, engine=EngineSettings(endpoint=f"ipc://{tmp_path}/e"))
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    route = FeatureView(
        name="route",
        version=1,
        entity="route",
        schema=(Field(name="mean_delay", type=FeatureType.FLOAT64),),
        source=ParquetSource(path="x.parquet"),
        ttl_s=60.0,
        owner="tests",
    )
    with Session(database) as session, session.begin():
        register_view(session, route)
    for each in versions(tmp_path):
        Registry(database).register(each)
    database.dispose()
    return settings


def versions(folder: Path) -> Iterator[Predictor]:
    def delay(version: int, **changes: Any) -> Predictor:
        return delay_predictor(folder, **{"version": version, "model": GOOD} | changes)

    yield from (delay(1), delay(2), delay(3), delay(4, model=BAD))
    gate = InputField(name="gate", kind=InputKind.STRING)
    yield delay(5, inputs=(*delay(1).inputs, gate))
    yield delay(6, features=(FeatureUse(ref="nowhere.at_all"),), columns=delay(1).columns[:2])
    yield from (notice_predictor(), notice_predictor(version=4))


@pytest.fixture
def engine(settings: Settings) -> Iterator[Served]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with serve(context, settings.engine_endpoint) as served:
        yield served
    context.destroy(linger=0)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias_moves, "ENGINE_S", 0.01)


def aliases(settings: Settings, name: str = "delay") -> dict[str, int]:
    with registered(settings) as (_, registry):
        return {alias: version for (owner, alias), version in registry.view().aliases.items() if owner == name}


def test_the_engine_holds_the_scorer_before_the_alias_points_at_it(settings: Settings, engine: Served) -> None:
    point(settings, "delay", "live", 1)
    point(settings, "delay", "shadow", 2)
    point(settings, "delay", "canary", 3, percent=5.0)
    assert engine.server.scorers.names == ("delay:1", "delay:2", "delay:3", "sum:1")
    assert aliases(settings) == {"live": 1, "shadow": 2, "canary": 3}


@pytest.mark.parametrize("alias", ["live", "shadow", "canary"])
def test_a_scorer_that_no_engine_can_load_is_refused_even_by_force(
    settings: Settings, engine: Served, alias: str
) -> None:
    point(settings, "delay", "live", 1)
    percent = 5.0 if alias == "canary" else None
    with pytest.raises(ConfigurationError, match=f"delay:4 is not served as {alias}: the engine could not load its"):
        point(settings, "delay", alias, 4, percent=percent, force=True)
    assert aliases(settings) == {"live": 1}


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_it_is_refused_and_done_by_force(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match=r"delay:1 is not served as live: no running engine.*--force"):
        point(settings, "delay", "live", 1)
    assert aliases(settings) == {}
    point(settings, "delay", "live", 1, force=True)
    assert aliases(settings) == {"live": 1}


@pytest.mark.usefixtures("no_engine")
def test_what_needs_no_scorer_and_aliases_of_ones_own_need_no_engine(settings: Settings) -> None:
    point(settings, "notice", "live", 3)
    point(settings, "delay", "draft", 4)
    assert (aliases(settings), aliases(settings, "notice")) == ({"draft": 4}, {"live": 3})


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("name", "alias", "version", "error", "words"),
    [
        ("delay", "live", 6, ConfigurationError, "'nowhere' is not declared"),
        ("delay", "live", 9, UnknownName, "version 9 of predictor 'delay' is unknown; known: 1, 2, 3, 4, 5, 6"),
        ("dealy", "live", 1, UnknownName, "predictor 'dealy' is unknown"),
        ("delay", "canary", 5, ConfigurationError, r"beside live version 1.*input 'gate' is required there"),
        ("delay", "shadow", 5, ConfigurationError, "cannot be the shadow beside live version 1"),
        ("notice", "canary", 4, ConfigurationError, "notice:4 writes text"),
        ("delay", "canary", 2, InvalidRequest, "0 to 100"),
    ],
)
def test_a_version_that_cannot_be_served_there_is_refused(
    settings: Settings, name: str, alias: str, version: int, error: type[Exception], words: str
) -> None:
    point(settings, "delay", "live", 1, force=True)
    with pytest.raises(error, match=words):
        point(settings, name, alias, version, force=True)
    assert aliases(settings) == {"live": 1}


@pytest.mark.usefixtures("no_engine")
def test_a_canary_needs_a_live_version_beside_it(settings: Settings) -> None:
    with pytest.raises(UnknownName, match="alias 'live' of predictor 'delay' is unknown"):
        point(settings, "delay", "canary", 2, percent=5.0, force=True)


def test_a_rollback_goes_one_version_back_and_a_second_one_is_explained(settings: Settings, engine: Served) -> None:
    for version in (1, 2, 3):
        point(settings, "delay", "live", version)
    assert roll_back(settings, "delay") == ["delay: live 3 -> 2; `headrace predictors alias delay live 3` undoes that"]
    with pytest.raises(ConfigurationError, match=r"rolled back already, from version 3 to 2.*live 1` goes further"):
        roll_back(settings, "delay")
    assert aliases(settings) == {"live": 2}


def test_a_rollback_says_that_a_canary_goes_on(settings: Settings, engine: Served) -> None:
    for version in (1, 2):
        point(settings, "delay", "live", version)
    point(settings, "delay", "canary", 3, percent=2.5)
    _, said = roll_back(settings, "delay")
    assert (
        said == "delay: canary version 3 keeps its 2.5 % of the entities; "
        "`headrace predictors unalias delay canary` stops that"
    )


@pytest.mark.usefixtures("no_engine")
def test_a_rollback_to_what_no_engine_holds_is_refused_without_force(settings: Settings) -> None:
    for version in (1, 2):
        point(settings, "delay", "live", version, force=True)
    with pytest.raises(ConfigurationError, match="delay:1 is not served as live: no running engine"):
        roll_back(settings, "delay")
    assert aliases(settings) == {"live": 2}
    roll_back(settings, "delay", force=True)
    assert aliases(settings) == {"live": 1}


@pytest.mark.usefixtures("no_engine")
def test_an_alias_is_taken_away_but_live(settings: Settings) -> None:
    point(settings, "delay", "live", 1, force=True)
    point(settings, "delay", "canary", 2, percent=5.0, force=True)
    take_away(settings, "delay", "canary")
    with pytest.raises(ConfigurationError, match="live of predictor 'delay' answers its callers"):
        take_away(settings, "delay", "live")
    assert aliases(settings) == {"live": 1}
    lines = [line.split("\t")[1:] for line in history(settings, "delay")]
    assert lines == [["canary", "-", "removed"], ["canary", "2", "set", "5 %"], ["live", "1", "set"]]
    with pytest.raises(UnknownName, match="predictor 'dealy' is unknown"):
        history(settings, "dealy")

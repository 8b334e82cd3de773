"""What a door keeps true in the background: views, loaded rungs, the engine's scorers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from core_engine.contracts import Deadline
from core_engine.errors import EngineUnavailable, ModelFileError
from core_engine.llm import messages as wire
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.registry import Registry
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.tables import open_database
from core_engine.readers import FeatureReader
from featurestore.definitions import FeatureType, FeatureView, Field, ParquetSource
from featurestore.on_demand.declaration import Log1p, OnDemandFeature, OnDemandView
from featurestore.registry import register_view
from headrace.migrations import upgrade
from headrace.upkeep import RegisteredFeatureReader, ScorerKeeper, repeat, warm_rungs
from tests.core_engine.predictors.doubles import FakeEngine, FakeFeatures, delay_predictor, notice_predictor
from tests.core_engine.predictors.test_label_prompt import predictor as label_predictor


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path / 'headrace.db'}"
    upgrade(url)
    database = open_database(url)
    yield database
    database.dispose()


@pytest.fixture
async def catalogue(database: Engine, tmp_path: Path) -> Catalogue:
    """Knows one live predictor that scores and one that writes."""
    registry = Registry(database)
    for predictor in (delay_predictor(tmp_path), notice_predictor()):
        registry.register(predictor)
        registry.set_alias(predictor.name, "live", predictor.version)
    catalogue = Catalogue(registry)
    await catalogue.refresh()
    return catalogue


def restarted(engine: FakeEngine, incarnation: str, *scorers: str) -> None:
    engine.welcome = wire.Welcome(wire.PROTOCOL, incarnation, "tiny", 512, "bfloat16", scorers)


# -- scorers


async def test_the_engine_is_given_the_scorers_that_it_lacks_once(catalogue: Catalogue) -> None:
    engine = FakeEngine()
    keeper = ScorerKeeper(engine, catalogue)
    await keeper.tend()
    await keeper.tend()
    assert engine.loaded == ["delay:1"]


async def test_a_scorer_that_the_engine_holds_is_not_sent(catalogue: Catalogue) -> None:
    engine = FakeEngine()
    restarted(engine, "first", "delay:1")
    await ScorerKeeper(engine, catalogue).tend()
    assert engine.loaded == []


async def test_a_restarted_engine_is_given_its_scorers_again(catalogue: Catalogue) -> None:
    engine = FakeEngine()
    keeper = ScorerKeeper(engine, catalogue)
    await keeper.tend()
    engine.is_there = False
    await keeper.tend()
    engine.is_there = True
    restarted(engine, "second")
    await keeper.tend()
    assert engine.loaded == ["delay:1", "delay:1"]


async def test_without_an_engine_nothing_is_asked(catalogue: Catalogue) -> None:
    engine = FakeEngine()
    engine.lose()
    await ScorerKeeper(engine, catalogue).tend()
    assert engine.loaded == []


async def test_a_new_version_is_loaded_when_an_alias_points_at_it(catalogue: Catalogue, tmp_path: Path) -> None:
    engine = FakeEngine()
    keeper = ScorerKeeper(engine, catalogue)
    await keeper.tend()
    catalogue._registry.register(delay_predictor(tmp_path, version=2))
    await catalogue.refresh()
    await keeper.tend()
    assert engine.loaded == ["delay:1"]
    catalogue._registry.set_alias("delay", "canary", 2, percent=5.0)
    await catalogue.refresh()
    await keeper.tend()
    assert engine.loaded == ["delay:1", "delay:2"]


async def test_a_damaged_file_is_logged_and_tried_again_later(catalogue: Catalogue) -> None:
    now = [0.0]
    engine = FakeEngine()
    engine.load_error = ModelFileError("damaged")
    keeper = ScorerKeeper(engine, catalogue, retry_s=10.0, clock=lambda: now[0])
    with capture_logs() as logs:
        await keeper.tend()
        await keeper.tend()
    assert [(line["event"], line["log_level"]) for line in logs] == [("scorer_not_loaded", "error")]
    engine.load_error = None
    await keeper.tend()
    assert engine.loaded == []
    now[0] = 10.0
    await keeper.tend()
    assert engine.loaded == ["delay:1"]


async def test_an_engine_lost_while_it_loads_is_tried_again_at_once(catalogue: Catalogue) -> None:
    engine = FakeEngine()
    engine.load_error = EngineUnavailable("lost")
    keeper = ScorerKeeper(engine, catalogue)
    await keeper.tend()
    engine.load_error = None
    await keeper.tend()
    assert engine.loaded == ["delay:1"]


# -- rungs


async def test_live_versions_are_loaded_before_they_are_asked_for(catalogue: Catalogue) -> None:
    rungs = RungCache()
    await warm_rungs(catalogue.view, rungs)
    loaded = await rungs.get(catalogue.resolve("delay"), Deadline.after(0.0))
    assert loaded.student is not None
    assert list(rungs._entries) == ["delay:1"]


async def test_a_predictor_that_the_language_model_scores_has_its_prior_loaded(
    catalogue: Catalogue, database: Engine, tmp_path: Path
) -> None:
    registry, asked = Registry(database), label_predictor(folder=tmp_path, name="asked")
    registry.register(asked)
    registry.set_alias("asked", "live", 1)
    await catalogue.refresh()
    rungs = RungCache()
    await warm_rungs(catalogue.view, rungs)
    assert (await rungs.get(asked, Deadline.after(0.0))).prior is not None


# -- views


def view(name: str, version: int = 1) -> FeatureView:
    return FeatureView(
        name=name,
        version=version,
        entity="route",
        schema=(Field(name="mean_delay", type=FeatureType.FLOAT64),),
        source=ParquetSource(path="x.parquet"),
        ttl_s=60.0,
        owner="tests",
    )


class Builds:
    """Counts the readers that were asked for."""

    def __init__(self) -> None:
        self.views: list[list[str]] = []
        self.latest = FakeFeatures()

    def __call__(self, views: Sequence[FeatureView], on_demand: Sequence[OnDemandView]) -> FeatureReader:
        names = [f"{view.name}:{view.version}" for view in views]
        self.views.append(names + [f"{view.name}:{view.version}" for view in on_demand])
        self.latest = FakeFeatures()
        return self.latest


def computed(version: int) -> OnDemandView:
    transform = Log1p(of=("route.mean_delay",))
    feature = OnDemandFeature(name="log_delay", transform=transform)
    return OnDemandView(name="logs", version=version, owner="tests", features=(feature,))


def register(database: Engine, *views: FeatureView | OnDemandView) -> None:
    with Session(database) as session, session.begin():
        for each in views:
            register_view(session, each)


async def test_views_are_followed_and_the_newest_version_of_each_is_read(database: Engine) -> None:
    builds = Builds()
    reader = RegisteredFeatureReader(database, builds)
    await reader.refresh()
    register(database, view("route"))
    await reader.refresh()
    await reader.refresh()
    register(database, view("route", 2), view("carrier"))
    await reader.refresh()
    register(database, computed(1), computed(2))
    await reader.refresh()
    assert builds.views == [[], ["route:1"], ["carrier:1", "route:2"], ["carrier:1", "route:2", "logs:2"]]

    row = await reader.read(["route.mean_delay"], {"route": "a"}, Deadline.never())
    assert row.values
    assert builds.latest.keys == [{"route": "a"}]


async def test_a_lost_database_keeps_the_last_views(tmp_path: Path) -> None:
    builds = Builds()
    database = open_database(f"sqlite:///{tmp_path / 'no' / 'such.db'}")
    reader = RegisteredFeatureReader(database, builds)
    with capture_logs() as logs:
        await reader.refresh()
    assert [line["event"] for line in logs] == ["feature_views_stale"]
    assert builds.views == [[]]
    database.dispose()


async def test_repeated_work_goes_on_until_it_is_cancelled() -> None:
    done = asyncio.Event()
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) == 3:
            done.set()

    task = asyncio.create_task(repeat(work, 0.0))
    await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert runs[:3] == [0, 1, 2]

"""The catalogue follows the registry without a restart, and outlives its database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from core_engine.errors import UnknownName
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.registry import Registry, RegistryView
from core_engine.predictors.tables import Base, open_database
from tests.core_engine.predictors.doubles import INPUTS, delay_predictor


class WatchedRegistry(Registry):
    """Tells when it was read."""

    def watch(self) -> asyncio.Event:
        self._read = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        return self._read

    def view(self, known: RegistryView | None = None) -> RegistryView:
        view = super().view(known)
        if hasattr(self, "_read"):
            self._loop.call_soon_threadsafe(self._read.set)
        return view


async def test_an_alias_that_moves_is_followed_in_the_background(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'r.db'}")
    Base.metadata.create_all(database)
    registry = WatchedRegistry(database)
    catalogue = Catalogue(registry, refresh_s=0.001)
    await catalogue.start()
    assert catalogue.loaded
    with pytest.raises(UnknownName):
        catalogue.resolve("delay")

    registry.register(delay_predictor(tmp_path))
    registry.set_alias("delay", "live", 1)
    for _ in range(2):  # the read under way may have begun before the alias was there
        await registry.watch().wait()
    await catalogue.refresh()
    assert catalogue.resolve("delay").version == 1
    await catalogue.close()
    database.dispose()


@pytest.fixture
def two_versions(registry: Registry, tmp_path: Path) -> Registry:
    for version in (1, 2):
        registry.register(delay_predictor(tmp_path, version=version))
    registry.set_alias("delay", "live", 1)
    return registry


async def test_a_canary_takes_its_share_and_an_alias_is_itself(two_versions: Registry) -> None:
    catalogue = Catalogue(two_versions)
    two_versions.set_alias("delay", "canary", 2, percent=100.0)
    await catalogue.refresh()
    assert catalogue.choose("delay", INPUTS).version == 2
    assert catalogue.choose("delay", INPUTS, alias="live").version == 2
    assert catalogue.resolve("delay").version == 1
    two_versions.set_alias("delay", "canary", 2, percent=0.0)
    await catalogue.refresh()
    assert catalogue.choose("delay", INPUTS).version == 1
    assert catalogue.choose("delay", INPUTS, alias="canary").version == 2


async def test_a_shadow_follows_live_and_nobody_else(two_versions: Registry) -> None:
    catalogue = Catalogue(two_versions)
    await catalogue.refresh()
    assert catalogue.shadow_of("delay", 1) is None
    two_versions.set_alias("delay", "shadow", 2)
    await catalogue.refresh()
    shadow = catalogue.shadow_of("delay", 1)
    assert shadow is not None
    assert shadow.version == 2
    assert catalogue.shadow_of("delay", 2) is None
    assert catalogue.shadow_of("other", 1) is None
    two_versions.set_alias("delay", "shadow", 1)
    await catalogue.refresh()
    assert catalogue.shadow_of("delay", 1) is None, "it would be compared with itself"


async def test_a_view_is_made_ready_before_it_is_used(two_versions: Registry) -> None:
    used: list[tuple[int | None, int]] = []

    async def prepare(view: RegistryView) -> None:
        used.append((catalogue.view.aliases.get(("delay", "live")), view.aliases["delay", "live"]))

    catalogue = Catalogue(two_versions, prepare=prepare)
    await catalogue.refresh()
    await catalogue.refresh()  # nothing new
    two_versions.set_alias("delay", "live", 2)
    await catalogue.refresh()
    assert used == [(None, 1), (1, 2)]
    assert catalogue.resolve("delay").version == 2


async def test_a_lost_database_keeps_the_last_view_and_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    database = open_database(f"sqlite:///{path}")
    Base.metadata.create_all(database)
    registry = Registry(database)
    registry.register(delay_predictor(tmp_path))
    registry.set_alias("delay", "live", 1)
    catalogue = Catalogue(registry)
    await catalogue.refresh()
    kept = catalogue.view

    Base.metadata.drop_all(database)
    with capture_logs() as logs:
        await catalogue.refresh()
        await catalogue.refresh()
    assert [line["event"] for line in logs] == ["catalogue_stale"]
    assert catalogue.failure
    assert catalogue.loaded
    assert catalogue.view is kept
    assert catalogue.resolve("delay").version == 1

    Base.metadata.create_all(database)
    with capture_logs() as logs:
        await catalogue.refresh()
    assert [line["event"] for line in logs] == ["catalogue_recovered"]
    assert not catalogue.failure
    database.dispose()


async def test_a_database_that_was_never_there_is_not_loaded(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'no' / 'folder.db'}")
    catalogue = Catalogue(Registry(database))
    await catalogue.start()
    assert not catalogue.loaded
    assert catalogue.failure is not None
    await catalogue.close()
    await catalogue.close()
    database.dispose()

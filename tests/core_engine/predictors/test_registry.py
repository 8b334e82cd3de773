"""Versions are immutable, aliases move, and a name that is not known comes back with those that are."""

from __future__ import annotations

import math
import threading
from datetime import UTC
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, InvalidRequest, UnknownName
from core_engine.predictors.alias_history import Cause
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.registry import Registry, RegistryView
from core_engine.predictors.tables import Base, PredictorVersion, open_database
from tests.core_engine.predictors.doubles import delay_predictor, notice_predictor


@pytest.fixture
def predictor(tmp_path: Path) -> Predictor:
    return delay_predictor(tmp_path)


def database_of(registry: Registry) -> Engine:
    return registry._engine


def test_what_was_registered_is_what_is_read(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    registry.register(notice_predictor())
    registry.set_alias("delay", "live", 1)

    assert registry.resolve("delay") == predictor
    assert registry.resolve("delay").fingerprint == predictor.fingerprint
    assert registry.resolve("notice", version=3) == notice_predictor()
    assert registry.predictors() == [predictor, notice_predictor()]
    assert registry.view().live() == [predictor]


def test_the_same_declaration_again_is_a_no_op(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    registry.register(predictor)
    assert registry.predictors() == [predictor]


def test_a_served_version_never_changes(registry: Registry, predictor: Predictor, tmp_path: Path) -> None:
    registry.register(predictor)
    with pytest.raises(ConfigurationError, match=r"delay:1 is registered with another declaration.*new version"):
        registry.register(delay_predictor(tmp_path, budget_ms=51.0))
    assert registry.resolve("delay", version=1) == predictor


def test_a_declaration_that_does_not_hang_together_is_not_stored(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no student is declared"):
        registry.register(delay_predictor(tmp_path, student=None))
    assert registry.predictors() == []


def test_an_alias_moves_and_moves_back(registry: Registry, predictor: Predictor, tmp_path: Path) -> None:
    second = delay_predictor(tmp_path, version=2, budget_ms=80.0)
    registry.register(predictor)
    registry.register(second)
    registry.set_alias("delay", "live", 1)
    registry.set_alias("delay", "live", 2)
    assert registry.resolve("delay") == second
    registry.set_alias("delay", "live", 1)
    assert registry.resolve("delay") == predictor


def test_every_move_of_an_alias_is_kept_in_its_order(registry: Registry, predictor: Predictor, tmp_path: Path) -> None:
    for each in (predictor, delay_predictor(tmp_path, version=2)):
        registry.register(each)
    registry.set_alias("delay", "live", 1)
    registry.set_alias("delay", "live", 1)  # no move
    registry.set_alias("delay", "canary", 2, percent=5.0)
    registry.set_alias("delay", "canary", 2, percent=20.0)
    registry.remove_alias("delay", "canary")
    registry.set_alias("delay", "live", 2)
    registry.set_alias("delay", "live", 1, cause=Cause.ROLLBACK)
    told = [(move.alias, move.version, move.percent, move.cause) for move in registry.moves("delay")]
    assert told == [
        ("live", 1, None, Cause.SET),
        ("canary", 2, 5.0, Cause.SET),
        ("canary", 2, 20.0, Cause.SET),
        ("canary", None, None, Cause.REMOVED),
        ("live", 2, None, Cause.SET),
        ("live", 1, None, Cause.ROLLBACK),
    ]
    assert [move.version for move in registry.moves("delay", "live")] == [1, 2, 1]
    assert registry.moves("delay")[0].moved_at.tzinfo is UTC


def test_a_canary_has_its_share_until_it_is_taken_away(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    registry.set_alias("delay", "canary", 1, percent=0.5)
    assert registry.view().percents == {"delay": 0.5}
    registry.remove_alias("delay", "canary")
    assert registry.view() == RegistryView({("delay", 1): predictor})
    with pytest.raises(UnknownName, match="alias 'canary' of predictor 'delay' is unknown"):
        registry.remove_alias("delay", "canary")


@pytest.mark.parametrize(
    ("alias", "percent", "words"),
    [
        ("canary", None, "0 to 100"),
        ("canary", -0.1, "0 to 100"),
        ("canary", 100.1, "0 to 100"),
        ("canary", math.nan, "0 to 100"),
        ("live", 5.0, "alias 'live' takes no share"),
        ("shadow", 5.0, "alias 'shadow' takes no share"),
    ],
)
def test_a_share_that_cannot_be_is_refused_and_moves_nothing(
    registry: Registry, predictor: Predictor, alias: str, percent: float | None, words: str
) -> None:
    registry.register(predictor)
    with pytest.raises(InvalidRequest, match=words) as caught:
        registry.set_alias("delay", alias, 1, percent=percent)
    assert caught.value.field == "percent"
    assert registry.moves("delay") == []


def test_an_alias_cannot_point_at_nothing(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    with pytest.raises(UnknownName, match="version 9 of predictor 'delay' is unknown; known: 1"):
        registry.set_alias("delay", "live", 9)


def test_names_that_are_not_known_come_with_those_that_are(registry: Registry, predictor: Predictor) -> None:
    with pytest.raises(UnknownName, match="known: none"):
        registry.resolve("delay")
    registry.register(predictor)
    registry.register(notice_predictor())
    with pytest.raises(UnknownName, match="predictor 'dealy' is unknown; known: delay, notice") as caught:
        registry.resolve("dealy")
    assert (caught.value.field, caught.value.value, caught.value.status) == ("predictor", "dealy", 404)
    registry.set_alias("delay", "shadow", 1)
    with pytest.raises(UnknownName, match="alias 'live' of predictor 'delay' is unknown; known: shadow"):
        registry.resolve("delay")


def test_instants_are_aware_utc(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    with Session(database_of(registry)) as session:
        assert session.get_one(PredictorVersion, ("delay", 1)).created_at.tzinfo is UTC


def test_a_declaration_that_cannot_be_read_is_named(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    with database_of(registry).begin() as connection:
        connection.execute(text("UPDATE predictor_versions SET declaration = '{\"name\": 1}'"))
    with pytest.raises(ConfigurationError, match="predictor delay:1 in the registry cannot be read"):
        registry.view()


def test_known_versions_are_not_read_again(registry: Registry, predictor: Predictor) -> None:
    registry.register(predictor)
    first = registry.view()
    with database_of(registry).begin() as connection:
        connection.execute(text("UPDATE predictor_versions SET declaration = 'no longer read'"))
    assert registry.view(first).versions["delay", 1] is first.versions["delay", 1]


def test_several_processes_may_register_at_once(tmp_path: Path, predictor: Predictor) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    databases = [open_database(url) for _ in range(4)]
    Base.metadata.create_all(databases[0])
    failures: list[BaseException] = []

    def run(database: Engine) -> None:
        try:
            Registry(database).register(predictor)
            Registry(database).set_alias("delay", "live", 1)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert Registry(databases[0]).resolve("delay") == predictor
    for database in databases:
        database.dispose()


def test_an_empty_view_knows_nothing() -> None:
    assert RegistryView().names() == []
    assert RegistryView().live() == []


@pytest.mark.parametrize("url", ["", "no url", "nosuch://host/db"])
def test_a_malformed_url_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigurationError, match="database URL"):
        open_database(url)


def test_a_missing_driver_is_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"database URL.*asyncpg"):
        open_database("postgresql+asyncpg://user@host/db")

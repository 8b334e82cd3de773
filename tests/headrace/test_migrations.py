"""One history, several metadatas: an upgraded database is exactly what the tables declare."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session

from batch.tables import Base as Batch
from core_engine.costs.tables import Base as Ledger
from core_engine.errors import ConfigurationError
from core_engine.predictors.tables import Base, PredictorVersion, open_database
from core_engine.tenants.tables import Base as Tenants
from featurestore.registry import load_views, register_view
from featurestore.registry import metadata as feature_views
from headrace.migrations import configured, upgrade
from tests.featurestore.rows import make_view

METADATA = [Base.metadata, feature_views, Ledger.metadata, Batch.metadata, Tenants.metadata]
TABLES = {"alembic_version"} | {name for metadata in METADATA for name in metadata.tables}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'new folder' / '50%.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def any_url(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """A database of our own on each kind of server."""
    if request.param == "sqlite":
        yield url
        return
    server = make_url(request.getfixturevalue("postgres_url"))
    name = f"headrace_{uuid.uuid4().hex}"
    administrator = create_engine(server, isolation_level="AUTOCOMMIT")
    with administrator.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield server.set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    administrator.dispose()


def test_an_upgraded_database_is_what_the_metadata_declares(any_url: str) -> None:
    upgrade(any_url)
    engine = open_database(any_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []  # type: ignore[arg-type]
    assert set(inspect(engine).get_table_names()) == TABLES
    engine.dispose()


def test_a_second_upgrade_changes_nothing(url: str) -> None:
    upgrade(url)
    engine = open_database(url)
    with engine.connect() as connection:
        before = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master ORDER BY name").all()
    upgrade(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT name, sql FROM sqlite_master ORDER BY name").all() == before
    engine.dispose()


def test_the_history_can_be_walked_back(any_url: str) -> None:
    upgrade(any_url)
    engine = open_database(any_url)
    with engine.begin() as connection:
        command.downgrade(configured(connection), "base")
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()


def test_processes_that_upgrade_at_once_do_not_collide(url: str) -> None:
    Path(url.removeprefix("sqlite:///")).parent.mkdir()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            upgrade(url)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_views_that_were_registered_before_stay_registered(any_url: str) -> None:
    """Revision 0004 gives each version a status."""
    view = make_view(name="old")
    upgrade(any_url)
    engine = open_database(any_url)
    with Session(engine) as session, session.begin():
        register_view(session, view)
    with engine.begin() as connection:
        command.downgrade(configured(connection), "0003")
        assert "status" not in {column["name"] for column in inspect(connection).get_columns("feature_views")}
        command.upgrade(configured(connection), "head")
    with Session(engine) as session:
        assert load_views(session) == [view]
    engine.dispose()


def test_the_database_is_shared_by_writers_without_blocking_readers(url: str) -> None:
    upgrade(url)
    engine = open_database(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 5000
    engine.dispose()


def test_a_naive_instant_is_refused_by_the_tables(url: str) -> None:
    upgrade(url)
    engine = open_database(url)
    row = PredictorVersion(name="p", version=1, fingerprint="f", declaration="{}", created_at=datetime(2024, 1, 1))
    with pytest.raises(StatementError, match="naive"), Session(engine) as session, session.begin():
        session.add(row)
    engine.dispose()


@pytest.mark.parametrize("bad", ["not a url", "nosuchdatabase://host/db", "sqlite:////dev/null/x/y.db"])
def test_a_database_that_cannot_be_opened_is_one_clear_sentence(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="database"):
        upgrade(bad)

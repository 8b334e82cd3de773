"""The one alembic history of every table of every part. `upgrade` brings a database to its head.

Called by the composition roots before anything reads the database; the tables themselves are declared by their owners.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from core_engine.errors import ConfigurationError
from core_engine.predictors.tables import open_database

HERE = Path(__file__).parent
ONE_AT_A_TIME = 0x4EADACE  # the advisory lock of our upgrades


def upgrade(url: str) -> None:
    """Bring the database at `url` to the newest revision; one that is there already is left alone.

    A SQLite file and its folder are created. Two processes may call this at once: one of them does the work.

    Raises:
        ConfigurationError: the URL is malformed, or the database cannot be reached.
    """
    engine = open_database(url)
    try:
        if engine.dialect.name == "sqlite":
            _prepare_sqlite(engine)
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})")
            command.upgrade(configured(connection), "head")
    except (OperationalError, OSError) as error:
        raise ConfigurationError(f"database {engine.url!r} cannot be opened: {error}") from None
    finally:
        engine.dispose()


def configured(connection: Connection) -> Config:
    """Alembic's configuration over an open connection; there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _prepare_sqlite(engine: Engine) -> None:
    """Make the folder, and make every transaction a real one that excludes other writers from its start.

    Source: SQLAlchemy, "SQLite dialect: Serializable isolation / Savepoints / Transactional DDL".
    """
    database = engine.url.database
    if database and database != ":memory:":
        Path(database).parent.mkdir(parents=True, exist_ok=True)

    @event.listens_for(engine, "connect")
    def _leave_transactions_to_us(connection: object, _record: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

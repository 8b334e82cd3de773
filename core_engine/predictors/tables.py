"""The registry's tables and how a database is opened; the feature views' table is featurestore's own.

Used by `registry` and by the migrations.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Double, Engine, ForeignKeyConstraint, Index, String, Text, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core_engine.errors import ConfigurationError
from core_engine.sql_types import UtcDateTime

BUSY_TIMEOUT_S = 5.0


class Base(DeclarativeBase):
    """Metadata of the predictor registry."""


class PredictorVersion(Base):
    """One immutable version. `declaration` is its canonical JSON as text, so that its bytes survive any database."""

    __tablename__ = "predictor_versions"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    fingerprint: Mapped[str] = mapped_column(String(64))
    declaration: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PredictorAlias(Base):
    """A movable name (`live`, `shadow`, `canary`) for one version of one predictor.

    `percent` is a canary's share of the entities that ask for live; null of every other alias.
    """

    __tablename__ = "predictor_aliases"
    __table_args__ = (
        ForeignKeyConstraint(
            ["predictor", "version"],
            ["predictor_versions.name", "predictor_versions.version"],
            name="fk_predictor_aliases_version",
        ),
    )

    predictor: Mapped[str] = mapped_column(String(128), primary_key=True)
    alias: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[int]
    percent: Mapped[float | None] = mapped_column(Double)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PredictorAliasMove(Base):
    """One move of an alias, kept for ever, in the order of `id`. `version` is null where it was taken away."""

    __tablename__ = "predictor_alias_moves"
    __table_args__ = (Index("ix_predictor_alias_moves_predictor", "predictor"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    predictor: Mapped[str] = mapped_column(String(128))
    alias: Mapped[str] = mapped_column(String(64))
    version: Mapped[int | None]
    percent: Mapped[float | None] = mapped_column(Double)
    cause: Mapped[str] = mapped_column(String(16))
    moved_at: Mapped[datetime] = mapped_column(UtcDateTime)


def open_database(url: str) -> Engine:
    """A SQLAlchemy engine for `url`; nothing is connected yet.

    SQLite gets WAL (the engine, the door and the command line share one file), a busy timeout and foreign keys.

    Raises:
        ConfigurationError: where the URL cannot be parsed or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
        engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
    except (ArgumentError, ImportError) as error:
        raise ConfigurationError(f"database URL {url!r}: {error}; expected e.g. sqlite:///path/to/file.db") from None
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()

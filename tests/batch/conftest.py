"""A job over scripted work: real database, real files, real Valkey where a test publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from sqlalchemy import Engine

from batch.checkpoints import JobStore
from batch.job import Job, JobSpec, resolve
from batch.tables import Base
from core_engine.predictors.tables import open_database
from tests.batch.doubles import text_predictor
from tests.featurestore.conftest import client, own_server, redis_url, socket_dir

__all__ = ("client", "own_server", "redis_url", "socket_dir")  # fixtures

MakeJob: TypeAlias = Callable[..., Job]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'batch.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def store(database: Engine) -> JobStore:
    return JobStore(database)


def write_lines(path: Path, rows: list[Any]) -> Path:
    """One JSON document a line; bytes are written as they are."""
    path.write_bytes(b"".join((row if isinstance(row, bytes) else msgspec.json.encode(row)) + b"\n" for row in rows))
    return path


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    """A job of the text predictor over `rows`, by default five good ones."""

    def make(rows: list[Any] | None = None, *, job: str | None = None, publish: bool = False) -> Job:
        given = [{"name": f"n{at}"} for at in range(5)] if rows is None else rows
        path = write_lines(tmp_path / "input.jsonl", given)
        spec = JobSpec(predictor="text", input=str(path), output=str(tmp_path / "out"), job=job, publish=publish)
        return resolve(spec, text_predictor(), {})

    return make

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType, Field
from featurestore.registry import FeatureViewRecord, fingerprint, load_views, metadata, register_view
from tests.featurestore.rows import make_view

VIEW = make_view(
    Field(name="delay", type=FeatureType.FLOAT64, default=0.0),
    Field(name="gate", type=FeatureType.STRING, default="é"),
    Field(name="late", type=FeatureType.BOOL, default=False),
    Field(name="seats", type=FeatureType.INT64),
    name="plane_stats",
    ttl_s=0.1,
)


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'headrace.db'}"
    engine = create_engine(url)
    metadata.create_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def session(database: str) -> Iterator[Session]:
    engine = create_engine(database)
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_views_come_back_as_they_were_declared(session: Session) -> None:
    second, other = make_view(name="plane_stats", version=2), make_view(name="airport_stats")
    for view in (second, VIEW, other):
        register_view(session, view)
    session.commit()
    session.expire_all()
    assert load_views(session) == [other, VIEW, second]


def test_registering_again_changes_nothing(session: Session) -> None:
    register_view(session, VIEW)
    session.commit()
    [created_at] = session.scalars(select(FeatureViewRecord.created_at))
    register_view(session, VIEW)
    session.commit()
    assert session.scalars(select(FeatureViewRecord.created_at)).all() == [created_at]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ttl_s": 0.2}, "ttl_s"),
        ({"entity": "route"}, "entity"),
        ({"schema": VIEW.schema[:-1]}, "schema"),
        ({"schema": (msgspec.structs.replace(VIEW.schema[0], default=1.0), *VIEW.schema[1:])}, "schema"),
    ],
)
def test_a_view_is_frozen_once_registered(session: Session, change: dict[str, object], word: str) -> None:
    register_view(session, VIEW)
    session.commit()
    with pytest.raises(ConfigurationError, match=rf"plane_stats version 1 .*\({word}\); declare version 2"):
        register_view(session, msgspec.structs.replace(VIEW, **change))
    session.rollback()
    assert load_views(session) == [VIEW]


@pytest.mark.parametrize("ttl_s", [VIEW.ttl_s, 9.0])
def test_of_two_processes_that_register_at_once_one_wins_and_the_other_is_told(
    database: str, session: Session, ttl_s: float
) -> None:
    """Another process inserts between this session's look and its insert."""
    engine = create_engine(database)

    def overtake(*_: object) -> None:
        with Session(engine) as rival, rival.begin():
            register_view(rival, msgspec.structs.replace(VIEW, ttl_s=ttl_s))

    event.listen(session, "before_flush", overtake, once=True)
    if ttl_s == VIEW.ttl_s:
        register_view(session, VIEW)
    else:
        with pytest.raises(ConfigurationError, match="another declaration"):
            register_view(session, VIEW)
    session.rollback()
    assert [view.ttl_s for view in load_views(session)] == [ttl_s]
    engine.dispose()


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    script = (
        "import sys, msgspec; from featurestore.definitions import FeatureView; from featurestore.registry import"
        " fingerprint; print(fingerprint(msgspec.json.decode(sys.stdin.buffer.read(), type=FeatureView)))"
    )
    there = subprocess.run(
        [sys.executable, "-c", script], input=msgspec.json.encode(VIEW), capture_output=True, check=True
    )
    assert there.stdout.decode().strip() == fingerprint(VIEW)


def test_the_metadata_is_one_table() -> None:
    [table] = metadata.sorted_tables
    assert table.name == "feature_views"
    assert [column.name for column in table.primary_key] == ["name", "version"]

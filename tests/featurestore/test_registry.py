from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, UnknownName
from featurestore.definitions import Entity, FeatureType, Field
from featurestore.on_demand.declaration import Difference, OnDemandFeature, OnDemandView
from featurestore.registry import (
    Status,
    find_view,
    fingerprint,
    load_entities,
    load_on_demand_views,
    load_views,
    register_entity,
    register_view,
    set_status,
)
from featurestore.tables import FeatureViewRecord
from tests.featurestore.rows import make_view

VIEW = make_view(
    Field(name="delay", type=FeatureType.FLOAT64, default=0.0),
    Field(name="gate", type=FeatureType.STRING, default="é"),
    Field(name="late", type=FeatureType.BOOL, default=False),
    Field(name="seats", type=FeatureType.INT64),
    name="plane_stats",
    ttl_s=0.1,
)
PLANE = Entity(name="plane", join_keys=("tail",), owner="tests")
ON_DEMAND = OnDemandView(
    name="route",
    version=1,
    owner="tests",
    features=(OnDemandFeature(name="spread", transform=Difference(of=("plane_stats.delay", "plane_stats.seats"))),),
)


@pytest.fixture
def session(database: Engine) -> Iterator[Session]:
    with Session(database) as session:
        yield session


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
        ({"schema": VIEW.schema[:-1]}, r"schema.seats"),
        ({"schema": VIEW.schema[::-1]}, r"schema \(order\)"),
        ({"schema": (msgspec.structs.replace(VIEW.schema[0], default=1.0), *VIEW.schema[1:])}, "schema.delay.default"),
    ],
)
def test_a_view_is_frozen_once_registered(session: Session, change: dict[str, object], word: str) -> None:
    register_view(session, VIEW)
    session.commit()
    with pytest.raises(ConfigurationError, match=rf"plane_stats version 1 .*\({word}: .* -> .*\); declare version 2"):
        register_view(session, msgspec.structs.replace(VIEW, **change))
    session.rollback()
    assert load_views(session) == [VIEW]


@pytest.mark.parametrize("ttl_s", [VIEW.ttl_s, 9.0])
def test_of_two_processes_that_register_at_once_one_wins_and_the_other_is_told(
    database: Engine, session: Session, ttl_s: float
) -> None:
    """Another process inserts between this session's look and its insert."""

    def overtake(*_: object) -> None:
        with Session(database) as rival, rival.begin():
            register_view(rival, msgspec.structs.replace(VIEW, ttl_s=ttl_s))

    event.listen(session, "before_flush", overtake, once=True)
    if ttl_s == VIEW.ttl_s:
        register_view(session, VIEW)
    else:
        with pytest.raises(ConfigurationError, match="another declaration"):
            register_view(session, VIEW)
    session.rollback()
    assert [view.ttl_s for view in load_views(session)] == [ttl_s]


def test_the_next_version_is_above_every_one_that_ever_was(session: Session) -> None:
    for version in (1, 2, 3):
        register_view(session, msgspec.structs.replace(VIEW, version=version))
    set_status(session, VIEW.name, 3, Status.DELETED)
    with pytest.raises(ConfigurationError, match="declare version 4"):
        register_view(session, msgspec.structs.replace(VIEW, ttl_s=9.0))


def test_a_deleted_version_is_not_loaded_and_comes_back_only_as_it_was(session: Session) -> None:
    register_view(session, VIEW)
    for status in (Status.DELETING, Status.DELETED):
        set_status(session, VIEW.name, VIEW.version, status)
        session.flush()
        assert load_views(session) == []
        with pytest.raises(ConfigurationError, match="ttl_s"):
            register_view(session, msgspec.structs.replace(VIEW, ttl_s=9.0))
    register_view(session, VIEW)
    assert load_views(session) == [VIEW]


def test_a_version_whose_deletion_is_not_finished_cannot_come_back(session: Session) -> None:
    register_view(session, VIEW)
    set_status(session, VIEW.name, VIEW.version, Status.DELETING)
    with pytest.raises(ConfigurationError, match="plane_stats version 1 is being deleted; finish that first"):
        register_view(session, VIEW)


def test_on_demand_views_are_frozen_and_come_back_like_views(session: Session) -> None:
    register_view(session, ON_DEMAND)
    session.commit()
    session.expire_all()
    register_view(session, ON_DEMAND)
    assert load_on_demand_views(session) == [ON_DEMAND]
    assert load_views(session) == []
    with pytest.raises(ConfigurationError, match=r"on-demand view route version 1 .*\(owner: 'tests' -> 'us'\)"):
        register_view(session, msgspec.structs.replace(ON_DEMAND, owner="us"))


def test_an_entity_may_change_hands_but_not_its_keys_under_a_view(session: Session) -> None:
    register_entity(session, PLANE)
    register_entity(session, msgspec.structs.replace(PLANE, owner="us", description="an airframe"))
    rekeyed = msgspec.structs.replace(PLANE, join_keys=("tail", "country"))
    register_entity(session, rekeyed)
    assert load_entities(session) == [rekeyed]
    register_view(session, VIEW)
    with pytest.raises(
        ConfigurationError, match=r"plane is registered with other join keys .*plane_stats:1 have the old"
    ):
        register_entity(session, PLANE)
    assert load_entities(session) == [rekeyed]


def test_an_entity_that_another_process_registers_at_once_is_registered_once(
    database: Engine, session: Session
) -> None:
    def overtake(*_: object) -> None:
        with Session(database) as rival, rival.begin():
            register_entity(rival, PLANE)

    event.listen(session, "before_flush", overtake, once=True)
    register_entity(session, PLANE)
    session.commit()
    assert load_entities(session) == [PLANE]


def test_the_newest_version_of_a_view_is_found_or_what_there_is_said(session: Session) -> None:
    second = msgspec.structs.replace(VIEW, version=2, ttl_s=9.0)
    register_view(session, VIEW)
    register_view(session, second)
    assert find_view(session, "plane_stats") == second
    assert find_view(session, "plane_stats", 1) == VIEW
    with pytest.raises(UnknownName, match="plane_stats version 3 is unknown; registered: plane_stats:1, plane_stats:2"):
        find_view(session, "plane_stats", 3)
    with pytest.raises(UnknownName, match="nothing version 1 is unknown"):
        set_status(session, "nothing", 1, Status.DELETED)


def test_a_declaration_of_a_later_release_is_one_sentence(session: Session) -> None:
    register_view(session, VIEW)
    record = session.get_one(FeatureViewRecord, (VIEW.name, 1))
    record.declaration = {**record.declaration, "invented": 1}
    with pytest.raises(ConfigurationError, match=r"plane_stats version 1 in the registry cannot be read: .*invented"):
        load_views(session)


def test_instants_come_back_aware_and_in_utc(session: Session) -> None:
    before = datetime.now(UTC)
    register_view(session, VIEW)
    session.commit()
    session.expire_all()
    [created_at] = session.scalars(select(FeatureViewRecord.created_at))
    assert created_at.utcoffset() == timedelta()
    assert before <= created_at <= datetime.now(UTC)


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    script = (
        "import sys, msgspec; from featurestore.definitions import FeatureView; from featurestore.registry import"
        " fingerprint; print(fingerprint(msgspec.json.decode(sys.stdin.buffer.read(), type=FeatureView)))"
    )
    there = subprocess.run(
        [sys.executable, "-c", script], input=msgspec.json.encode(VIEW), capture_output=True, check=True
    )
    assert there.stdout.decode().strip() == fingerprint(VIEW)

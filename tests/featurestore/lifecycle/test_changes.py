"""What applying a repository does: shown first, all or nothing, and nothing the second time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from featurestore.definitions import Entity, FeatureType, Field
from featurestore.lifecycle.changes import Verdict, apply, changes, refusal
from featurestore.lifecycle.watermarks import Watermark, Watermarks
from featurestore.on_demand.declaration import Log1p, OnDemandFeature, OnDemandView
from featurestore.registry import Status, load_entities, load_on_demand_views, load_views, set_status
from featurestore.repository import FeatureRepository
from tests.featurestore.rows import NOW, make_view

PLANE = Entity(name="plane", join_keys=("tail",), owner="tests")
DELAYS = make_view(Field(name="delay", type=FeatureType.FLOAT64, default=0.0), name="delays")
WEATHER = make_view(Field(name="wind", type=FeatureType.FLOAT64), name="weather")
LOGS = OnDemandView(
    name="logs",
    version=1,
    owner="tests",
    features=(OnDemandFeature(name="delay", transform=Log1p(of=("delays.delay",))),),
)
REPOSITORY = FeatureRepository(entities=(PLANE,), views=(DELAYS, WEATHER), on_demand_views=(LOGS,))
slower = msgspec.structs.replace(DELAYS, ttl_s=9.0)


@pytest.fixture
def session(database: Engine) -> Iterator[Session]:
    with Session(database) as session:
        yield session


def verdicts(session: Session, repository: FeatureRepository) -> dict[str, Verdict]:
    return {change.what: change.verdict for change in changes(session, repository)}


def with_views(*views: object, entity: Entity = PLANE) -> FeatureRepository:
    return msgspec.structs.replace(REPOSITORY, views=views, entities=(entity,))


def test_a_new_repository_is_new_and_then_the_same(session: Session) -> None:
    names = ["entity plane", "view delays:1", "view weather:1", "on-demand view logs:1"]
    assert verdicts(session, REPOSITORY) == dict.fromkeys(names, Verdict.NEW)
    assert load_views(session) == [], "looking changes nothing"
    apply(session, REPOSITORY)
    session.commit()
    assert verdicts(session, REPOSITORY) == dict.fromkeys(names, Verdict.SAME)
    assert (load_entities(session), load_views(session)) == ([PLANE], [DELAYS, WEATHER])
    assert load_on_demand_views(session) == [LOGS]


def test_a_changed_version_is_refused_by_its_fields_and_told_its_next_number(session: Session) -> None:
    apply(session, REPOSITORY)
    apply(session, with_views(msgspec.structs.replace(DELAYS, version=2), WEATHER))
    [change] = [c for c in changes(session, with_views(slower, WEATHER)) if c.verdict is Verdict.REFUSED]
    assert refusal(change) == "view delays:1 is frozen (ttl_s: 3600.0 -> 9.0): declare version 3"


def test_one_refusal_keeps_out_everything_and_all_of_them_are_told(session: Session) -> None:
    apply(session, REPOSITORY)
    session.commit()
    calmer = msgspec.structs.replace(WEATHER, owner="us")
    new = make_view(name="new")
    with pytest.raises(ConfigurationError, match=r"view delays:1 is frozen .*; view weather:1 is frozen"):
        apply(session, with_views(new, slower, calmer))
    session.commit()
    assert load_views(session) == [DELAYS, WEATHER]


def test_a_new_version_stands_beside_the_old_one(session: Session) -> None:
    apply(session, REPOSITORY)
    second = msgspec.structs.replace(slower, version=2)
    assert verdicts(session, with_views(second, WEATHER)) == {
        "entity plane": Verdict.SAME,
        "view delays:2": Verdict.NEW,
        "view weather:1": Verdict.SAME,
        "on-demand view logs:1": Verdict.SAME,
        "view delays:1": Verdict.KEPT,
    }
    apply(session, with_views(second, WEATHER))
    assert load_views(session) == [DELAYS, second, WEATHER]


def test_what_is_not_declared_any_more_is_kept(session: Session) -> None:
    apply(session, REPOSITORY)
    alone = msgspec.structs.replace(REPOSITORY, views=(DELAYS,), on_demand_views=())
    assert verdicts(session, alone) == {
        "entity plane": Verdict.SAME,
        "view delays:1": Verdict.SAME,
        "view weather:1": Verdict.KEPT,
        "on-demand view logs:1": Verdict.KEPT,
    }


def test_an_entity_takes_a_new_owner_and_no_new_keys(session: Session) -> None:
    apply(session, REPOSITORY)
    handed = msgspec.structs.replace(PLANE, owner="us")
    assert verdicts(session, with_views(DELAYS, WEATHER, entity=handed))["entity plane"] is Verdict.UPDATED
    apply(session, with_views(DELAYS, WEATHER, entity=handed))
    assert load_entities(session) == [handed]
    rekeyed = with_views(DELAYS, WEATHER, entity=msgspec.structs.replace(PLANE, join_keys=("tail", "country")))
    with pytest.raises(
        ConfigurationError, match=r"entity plane is frozen \(.*join_keys.*\): the rows of delays:1, weat"
    ):
        apply(session, rekeyed)


def test_a_deleted_version_comes_back_as_it_was_and_not_otherwise(session: Session) -> None:
    apply(session, REPOSITORY)
    set_status(session, "delays", 1, Status.DELETING)
    with pytest.raises(ConfigurationError, match="headrace features delete delays --version 1"):
        apply(session, REPOSITORY)
    set_status(session, "delays", 1, Status.DELETED)
    assert verdicts(session, with_views(slower, WEATHER))["view delays:1"] is Verdict.REFUSED
    assert verdicts(session, REPOSITORY)["view delays:1"] is Verdict.BACK
    apply(session, REPOSITORY)
    assert DELAYS in load_views(session)


def test_applying_touches_no_watermark(database: Engine, session: Session) -> None:
    watermarks = Watermarks(database)
    lease = watermarks.acquire("delays", 1, "me")
    watermarks.finish(lease, Watermark(NOW, "d"))
    for _ in range(2):
        apply(session, REPOSITORY)
        session.commit()
        assert watermarks.standing("delays", 1).watermark == Watermark(NOW, "d")

"""A repository either hangs together or is refused, before anything of it is registered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core_engine.errors import ConfigurationError
from featurestore.definitions import (
    Aggregate,
    AggregateKind,
    Entity,
    FeatureType,
    FeatureView,
    Field,
    ParquetSource,
    Window,
)
from featurestore.on_demand.declaration import Log1p
from featurestore.repository import FeatureRepository, check_repository, load_repository
from tests.featurestore.on_demand.declared import on_demand_view
from tests.featurestore.rows import make_view

ROUTE = Entity(name="route", join_keys=("origin", "dest"), owner="tests")
DAILY = make_view(Field(name="delay", type=FeatureType.FLOAT64), name="route_daily", entity="route")
MADE = on_demand_view({"size": Log1p(of=("route_daily.delay",))})
SOUND = FeatureRepository(entities=(ROUTE,), views=(DAILY,), on_demand_views=(MADE,))
NOT_A_REPOSITORY = 7
HERE = "tests.featurestore.test_repository"


def repository() -> FeatureRepository:
    return SOUND


def broken() -> FeatureRepository:
    return msgspec.structs.replace(SOUND, entities=())


def windowed(*key: str) -> FeatureView:
    window = Window(
        topic="departures",
        key=key,
        tile_s=60,
        num_tiles=2,
        grace_s=0,
        aggregates=(Aggregate(feature="flights", kind=AggregateKind.COUNT),),
        tiles=ParquetSource(path="none"),
    )
    view = make_view(Field(name="flights", type=FeatureType.INT64), name="route_window", entity="route")
    return msgspec.structs.replace(view, window=window)


def test_a_repository_is_data_and_sound() -> None:
    check_repository(SOUND)
    assert msgspec.json.decode(msgspec.json.encode(SOUND), type=FeatureRepository) == SOUND


@pytest.mark.parametrize("attribute", ["SOUND", "repository"])
def test_it_is_loaded_from_an_attribute_or_a_function(attribute: str) -> None:
    assert load_repository(f"{HERE}:{attribute}") is SOUND


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (HERE, "expected package.module:ATTRIBUTE"),
        (f"{HERE}:", "expected package.module:ATTRIBUTE"),
        (":SOUND", "expected package.module:ATTRIBUTE"),
        (f"{HERE}:GONE", "cannot be loaded: .*GONE"),
        ("tests.featurestore.no_such_module:SOUND", "cannot be loaded: No module named"),
        (f"{HERE}:NOT_A_REPOSITORY", "is int, no FeatureRepository"),
        (f"{HERE}:broken", "entity 'route' is not declared"),
    ],
)
def test_what_is_no_sound_repository_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"feature repository.*{message}"):
        load_repository(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entities": ()}, r"feature view route_daily: entity 'route' is not declared; declared: \[\]"),
        ({"entities": (ROUTE, ROUTE)}, r"the names of its entities must be distinct, got \['route', 'route'\]"),
        ({"views": (DAILY, DAILY)}, "the names of its views must be distinct"),
        (
            {"on_demand_views": (on_demand_view({"a": Log1p(of=("route_daily.delay",))}, name="route_daily"),)},
            "distinct",
        ),
        ({"on_demand_views": (on_demand_view({"a": Log1p(of=("gone.delay",))}),)}, r"made\.a: operand 'gone.delay'"),
        (
            {"entities": (msgspec.structs.replace(ROUTE, join_keys=()),)},
            "entity 'route': its join keys must be distinct",
        ),
        ({"entities": (msgspec.structs.replace(ROUTE, join_keys=("a", "a")),)}, "its join keys must be distinct"),
        ({"entities": (msgspec.structs.replace(ROUTE, join_keys=("a-b",)),)}, "entity 'route': 'a-b' is no name"),
        ({"views": (msgspec.structs.replace(DAILY, name="route.daily"),)}, "'route.daily' is no name"),
        ({"views": (msgspec.structs.replace(DAILY, name="request"),)}, "no view may be named 'request'"),
        (
            {"views": (make_view(Field(name="f", type=FeatureType.BOOL, default=7), name="v", entity="route"),)},
            r"feature v\.f: default 7 is not true or false",
        ),
        (
            {"views": (DAILY, windowed("origin"))},
            r"window is \('origin',\), but entity 'route' is joined by \('origin', 'd",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_in_words(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_repository(msgspec.structs.replace(SOUND, **changes))


def test_a_window_is_keyed_as_its_entity_is_joined() -> None:
    check_repository(msgspec.structs.replace(SOUND, views=(DAILY, windowed("from", "to"))))


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"route_daily: entity .*; on-demand feature made\.a"):
        check_repository(
            FeatureRepository(
                entities=(), views=(DAILY,), on_demand_views=(on_demand_view({"a": Log1p(of=("gone.delay",))}),)
            )
        )

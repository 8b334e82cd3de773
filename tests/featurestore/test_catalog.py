from __future__ import annotations

import math

import pytest

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.catalog import ViewCatalog, checked_key, compile_view, entity_key_of
from featurestore.definitions import FeatureType, Field
from tests.featurestore.rows import make_view

DELAY = Field(name="delay", type=FeatureType.FLOAT64, default=0)
SEATS = Field(name="seats", type=FeatureType.INT64)
PLANE = make_view(DELAY, SEATS, name="plane_stats", ttl_s=1.5)
ROUTE = make_view(DELAY, name="route_stats", entity="route")


def test_a_reference_resolves_to_its_view_and_place() -> None:
    feature = ViewCatalog([PLANE, ROUTE]).resolve("plane_stats.seats")
    assert (feature.compiled.view, feature.field, feature.position) == (PLANE, SEATS, 1)
    assert feature.compiled.ttl_us == 1_500_000
    assert feature.compiled.defaults == (0.0, None)


def test_references_are_grouped_by_view_in_order_of_mention() -> None:
    groups = ViewCatalog([PLANE, ROUTE]).by_view(["route_stats.delay", "plane_stats.seats", "plane_stats.delay"])
    assert [(c.view.name, [f.ref for f in features]) for c, features in groups] == [
        ("route_stats", ["route_stats.delay"]),
        ("plane_stats", ["plane_stats.seats", "plane_stats.delay"]),
    ]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("weather.wind", r"'weather' is not declared; declared: \['plane_stats', 'route_stats'\]"),
        ("plane_stats.wings", "has no feature 'wings'"),
        ("plane_stats", "has no feature ''"),
        ("plane_stats.seats.x", r"has no feature 'seats\.x'"),
        ("", "'' is not declared"),
        ("weather@dest.wind", "'weather' is not declared"),
        ("plane_stats@previous.wings", "has no feature 'wings'"),
        ("plane_stats@.seats", r"expected view\.feature or view@entity\.feature"),
        ("plane_stats@a@b.seats", r"expected view\.feature or view@entity\.feature"),
        ("plane_stats@a.b.seats", r"has no feature 'b\.seats'"),
    ],
)
def test_what_is_not_declared_is_refused_by_name(ref: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ViewCatalog([PLANE, ROUTE]).resolve(ref)


def test_a_feature_may_be_read_by_the_key_of_another_entity() -> None:
    catalog = ViewCatalog([PLANE, ROUTE])
    refs = ["plane_stats.seats", "plane_stats@previous.seats", "plane_stats.delay", "plane_stats@plane.delay"]
    groups = catalog.by_view(refs)
    assert [(compiled.view, compiled.entity, [f.ref for f in features]) for compiled, features in groups] == [
        (PLANE, "plane", ["plane_stats.seats", "plane_stats.delay", "plane_stats@plane.delay"]),
        (PLANE, "previous", ["plane_stats@previous.seats"]),
    ]
    keys = {"plane": "N1", "previous": "N2"}
    assert [entity_key_of(compiled, keys) for compiled, _ in groups] == ["N1", "N2"]
    with pytest.raises(InvalidRequest, match=r"entity previous = None.*feature view plane_stats"):
        entity_key_of(groups[1][0], {"plane": "N1"})


def test_a_reader_serves_one_version_of_a_view() -> None:
    with pytest.raises(ConfigurationError, match="plane_stats is declared twice"):
        ViewCatalog([PLANE, make_view(SEATS, name="plane_stats", version=2)])


@pytest.mark.parametrize("name", ["plane.stats", "plane:stats", "{plane}", "1st", "plane stats", "plané"])
def test_a_name_that_no_reference_or_key_can_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name"):
        compile_view(make_view(name=name))
    with pytest.raises(ConfigurationError, match="is no name"):
        compile_view(make_view(Field(name=name, type=FeatureType.BOOL)))


@pytest.mark.parametrize("ttl_s", [math.inf, math.nan])
def test_a_ttl_has_an_end(ttl_s: float) -> None:
    with pytest.raises(ConfigurationError, match="ttl_s must be finite"):
        compile_view(make_view(ttl_s=ttl_s))


def test_the_key_of_a_views_entity_is_found_among_the_keys() -> None:
    assert entity_key_of(compile_view(PLANE), {"route": "JFK-LAX", "plane": "N14228"}) == "N14228"


@pytest.mark.parametrize("keys", [{}, {"route": "JFK-LAX"}, {"plane": ""}, {"plane": None}, {"plane": 7}])
def test_a_missing_key_names_its_entity(keys: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"entity plane = .*feature view plane_stats") as refused:
        entity_key_of(compile_view(PLANE), keys)
    assert refused.value.field == "plane"


def test_half_a_surrogate_pair_is_no_key() -> None:
    with pytest.raises(InvalidRequest, match="entity plane"):
        checked_key(PLANE, "N\ud800")

from __future__ import annotations

import msgspec
import pytest

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType, FeatureView, Field
from tests.featurestore.rows import make_view

DELAY = Field(name="delay", type=FeatureType.INT64, default=0)


def test_a_view_is_data() -> None:
    view = make_view(DELAY, Field(name="gate", type=FeatureType.STRING))
    assert msgspec.json.decode(msgspec.json.encode(view), type=FeatureView) == view


def test_a_word_that_a_view_does_not_know_is_refused() -> None:
    declared = msgspec.to_builtins(make_view(DELAY)) | {"tll_s": 60}
    with pytest.raises(msgspec.ValidationError, match="tll_s"):
        msgspec.convert(declared, FeatureView)


def test_a_feature_is_found_by_name_or_refused_with_those_there_are() -> None:
    view = make_view(DELAY, name="v")
    assert view.field("delay") is DELAY
    with pytest.raises(ConfigurationError, match=r"feature view v has no feature 'delays'; it has \['delay'\]"):
        view.field("delays")


def test_names_of_a_schema_are_distinct() -> None:
    with pytest.raises(ConfigurationError, match="names of its schema must be distinct"):
        make_view(DELAY, DELAY)


def test_a_schema_has_a_field() -> None:
    with pytest.raises(ConfigurationError, match="must be distinct"):
        msgspec.structs.replace(make_view(DELAY), schema=())


@pytest.mark.parametrize("ttl_s", [0.0, -1.0])
def test_a_ttl_is_positive(ttl_s: float) -> None:
    with pytest.raises(ConfigurationError, match="ttl_s must be positive"):
        make_view(DELAY, ttl_s=ttl_s)


@pytest.mark.parametrize(("kind", "places"), [("decimal", -1), ("decimal", 39), ("float64", 2)])
def test_only_a_decimal_has_places(kind: str, places: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"field 'price' of type {kind}: decimal_places .* got {places}"):
        Field(name="price", type=FeatureType(kind), decimal_places=places)


def test_only_a_float_has_nan_to_refuse() -> None:
    with pytest.raises(ConfigurationError, match="field 'n' of type int64: only float64 has NaN to refuse"):
        Field(name="n", type=FeatureType.INT64, refuse_nan=True)


def test_a_field_declared_by_an_earlier_release_reads_the_same() -> None:
    stored = msgspec.json.decode(b'{"name":"delay","type":"int64","default":0}', type=Field)
    assert stored == DELAY
    assert not stored.is_list

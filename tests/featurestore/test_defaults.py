from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from core_engine.errors import ConfigurationError
from featurestore.defaults import served_default
from featurestore.definitions import FeatureType, Field
from tests.featurestore.rows import make_view
from tests.featurestore.values import same

MIDNIGHT = datetime(2013, 1, 1, 5, tzinfo=UTC)


def field_of(kind: FeatureType, default: Any, *, is_list: bool = False) -> Field:
    places = 2 if kind is FeatureType.DECIMAL else 0
    return Field(name="f", type=kind, default=default, is_list=is_list, decimal_places=places)


@pytest.mark.parametrize(
    ("kind", "default", "served"),
    [
        (FeatureType.BOOL, False, False),
        (FeatureType.INT64, 0, 0),
        (FeatureType.FLOAT64, 1, 1.0),
        (FeatureType.STRING, "é", "é"),
        (FeatureType.STRING, None, None),
        (FeatureType.BYTES, None, None),
        (FeatureType.BYTES, "/wA=", b"\xff\0"),
        (FeatureType.BYTES, "", b""),
        (FeatureType.TIMESTAMP, "2013-01-01T00:00:00-05:00", MIDNIGHT),
        (FeatureType.DECIMAL, "-12.5", Decimal("-12.50")),
        (FeatureType.DECIMAL, "999999999999999999999999999999999999.99", Decimal("9" * 36 + ".99")),
    ],
)
def test_a_default_is_served_as_a_stored_value_would_be(kind: FeatureType, default: Any, served: Any) -> None:
    field = field_of(kind, default)
    assert same(served_default(make_view(field), field), served)


@pytest.mark.parametrize(
    ("kind", "default", "served"),
    [
        (FeatureType.FLOAT64, (), []),
        (FeatureType.FLOAT64, (1, 2.5), [1.0, 2.5]),
        (FeatureType.STRING, ("", "é"), ["", "é"]),
        (FeatureType.BYTES, ("", "/wA="), [b"", b"\xff\0"]),
        (FeatureType.TIMESTAMP, ("2013-01-01T05:00:00Z",), [MIDNIGHT]),
        (FeatureType.DECIMAL, ("1", "2.25"), [Decimal("1.00"), Decimal("2.25")]),
    ],
)
def test_a_lists_default_is_a_list(kind: FeatureType, default: Any, served: list[Any]) -> None:
    field = field_of(kind, default, is_list=True)
    stored = msgspec.json.decode(msgspec.json.encode(field), type=Field)
    assert stored == field
    assert same(served_default(make_view(stored), stored), served)


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        (FeatureType.BOOL, 0, "true or false"),
        (FeatureType.INT64, 0.5, "an integer"),
        (FeatureType.FLOAT64, "0", "a number"),
        (FeatureType.FLOAT64, (0.0,), "a number"),
        (FeatureType.STRING, 0, "a string"),
        (FeatureType.BYTES, "raw", "bytes, written in base64"),
        (FeatureType.BYTES, 7, "bytes, written in base64"),
        (FeatureType.TIMESTAMP, "2013-01-01T00:00:00", "a datetime with a timezone.*, written as RFC 3339"),
        (FeatureType.TIMESTAMP, "midnight", ".*written as RFC 3339 with an offset"),
        (FeatureType.TIMESTAMP, 0, ".*written as RFC 3339 with an offset"),
        (FeatureType.DECIMAL, 0.5, "a Decimal of at most 38 digits, 2 of them .* as a string"),
        (FeatureType.DECIMAL, "0.001", "a Decimal of at most 38 digits, 2 of them"),
        (FeatureType.DECIMAL, "much", "a Decimal of at most 38 digits, 2 of them"),
    ],
)
def test_a_default_that_does_not_fit_stops_the_declaration(kind: FeatureType, default: Any, expected: str) -> None:
    field = field_of(kind, default)
    with pytest.raises(ConfigurationError, match=rf"feature flight\.f: default .* is not {expected}"):
        served_default(make_view(field, name="flight"), field)


@pytest.mark.parametrize("default", [1.0, "1", ("1",)])
def test_a_lists_default_of_another_type_stops_the_declaration(default: Any) -> None:
    field = field_of(FeatureType.FLOAT64, default, is_list=True)
    with pytest.raises(ConfigurationError, match=r"feature flight\.f: default .* is not a list; each element a number"):
        served_default(make_view(field, name="flight"), field)

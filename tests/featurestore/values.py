"""Fields of every type, values of them, and what it means that a value came back exactly."""

from __future__ import annotations

import math
import struct
from datetime import datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

from featurestore.codec import INT64_MAX, INT64_MIN
from featurestore.definitions import DECIMAL_DIGITS, FeatureType, Field

# within a day of the ends of the calendar an offset could leave it, which is refused and tested on its own
INSTANTS = st.datetimes(
    min_value=datetime(1, 1, 3),
    max_value=datetime(9999, 12, 29),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
VALUES: dict[FeatureType, st.SearchStrategy[Any]] = {
    FeatureType.BOOL: st.booleans(),
    FeatureType.INT64: st.integers(INT64_MIN, INT64_MAX),
    FeatureType.FLOAT64: st.floats(),
    FeatureType.STRING: st.text(),
    FeatureType.BYTES: st.binary(),
    FeatureType.TIMESTAMP: INSTANTS,
}


def decimals(places: int) -> st.SearchStrategy[Decimal]:
    largest = 10**DECIMAL_DIGITS - 1
    return st.integers(-largest, largest).map(lambda units: Decimal(units).scaleb(-places, EXACT))


EXACT = Context(prec=DECIMAL_DIGITS)


@st.composite
def fields(draw: st.DrawFn, name: str) -> Field:
    kind = draw(st.sampled_from(FeatureType))
    places = draw(st.integers(0, DECIMAL_DIGITS)) if kind is FeatureType.DECIMAL else 0
    return Field(name=name, type=kind, is_list=draw(st.booleans()), decimal_places=places)


def values_of(field: Field) -> st.SearchStrategy[Any]:
    scalars = decimals(field.decimal_places) if field.type is FeatureType.DECIMAL else VALUES[field.type]
    return st.lists(scalars, max_size=5) if field.is_list else scalars


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, with NaN equal to NaN, 0.0 unequal to -0.0, and 1.5 unequal to 1.50 of a decimal."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)

"""Every value comes back as it was written, and nothing else is accepted."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.codec import ABSENT, INT64_MAX, INT64_MIN, SCHEMA_VERSION, RowCodec, UnreadablePayload, served_default
from featurestore.definitions import FeatureType, FeatureView, Field
from tests.featurestore.rows import PROPERTY, make_view

ALL_TYPES = make_view(*(Field(name=kind.value, type=kind) for kind in FeatureType), name="flight")

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


@st.composite
def views_and_values(draw: st.DrawFn) -> tuple[FeatureView, dict[str, Any]]:
    """A view of one to nine fields in any order, and a row that leaves some out and has nulls in others."""
    kinds = draw(st.lists(st.sampled_from(FeatureType), min_size=1, max_size=9))
    view = make_view(*(Field(name=f"f{i}", type=kind) for i, kind in enumerate(kinds)), name="flight")
    values = {}
    for field in view.schema:
        value = draw(st.one_of(st.just(ABSENT), st.none(), VALUES[field.type]))
        if value is not ABSENT:
            values[field.name] = value
    return view, values


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, with NaN equal to NaN and 0.0 unequal to -0.0."""
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)


@PROPERTY
@given(views_and_values())
def test_any_row_of_any_schema_comes_back_exactly(case: tuple[FeatureView, dict[str, Any]]) -> None:
    view, values = case
    codec = RowCodec(view)
    decoded = codec.decode(codec.encode(values))
    expected = [values.get(field.name, ABSENT) for field in view.schema]
    assert all(same(got, want) for got, want in zip(decoded, expected, strict=True)), (decoded, expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("int64", INT64_MIN),
        ("int64", INT64_MAX),
        ("float64", -0.0),
        ("float64", math.nan),
        ("float64", math.inf),
        ("float64", 5e-324),
        ("string", ""),
        ("string", "Zürich \U0001f6eb 東京\0"),
        ("bytes", b""),
        ("bytes", b"\0\xff"),
        ("timestamp", datetime(2013, 1, 1, 5, 15, 0, 1, tzinfo=UTC)),
        ("timestamp", datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamp", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_bounds_come_back_exactly(field: str, value: Any) -> None:
    codec = RowCodec(ALL_TYPES)
    decoded = codec.decode(codec.encode({field: value}))
    assert same(decoded[[f.name for f in ALL_TYPES.schema].index(field)], value)


def test_an_instant_comes_back_in_utc() -> None:
    codec = RowCodec(make_view(Field(name="due", type=FeatureType.TIMESTAMP)))
    [due] = codec.decode(codec.encode({"due": datetime(2013, 7, 1, 12, tzinfo=timezone(timedelta(hours=-4)))}))
    assert due == datetime(2013, 7, 1, 16, tzinfo=UTC)
    assert due.utcoffset() == timedelta()


def test_an_integer_is_taken_for_a_float_only_where_a_double_holds_it() -> None:
    codec = RowCodec(make_view(Field(name="mean", type=FeatureType.FLOAT64)))
    assert codec.decode(codec.encode({"mean": 2**53})) == [2.0**53]
    with pytest.raises(InvalidRequest):
        codec.encode({"mean": 2**53 + 1})
    with pytest.raises(InvalidRequest):
        codec.encode({"mean": 10**400})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bool", 1),
        ("bool", "true"),
        ("int64", True),
        ("int64", INT64_MAX + 1),
        ("int64", INT64_MIN - 1),
        ("int64", 1.0),
        ("int64", "1"),
        ("float64", False),
        ("float64", "1.5"),
        ("string", b"bytes"),
        ("string", 7),
        ("string", "\ud800"),
        ("bytes", "text"),
        ("bytes", bytearray(b"x")),
        ("timestamp", datetime(2013, 1, 1)),
        ("timestamp", 1_356_998_400),
        ("timestamp", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
        ("timestamp", datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_field_value_and_expectation(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        RowCodec(ALL_TYPES).encode({field: value})
    assert refused.value.field == f"flight.{field}"
    assert refused.value.value is value
    assert refused.value.expected is not None
    assert f"flight.{field} = " in str(refused.value)
    assert refused.value.expected in str(refused.value)


def test_a_name_outside_the_schema_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"flight\.delays is not in the view's schema"):
        RowCodec(ALL_TYPES).encode({"int64": 1, "delays": 2})


def test_absent_and_null_cost_no_tail_and_stay_apart() -> None:
    codec = RowCodec(make_view(*(Field(name=name, type=FeatureType.STRING) for name in "abc")))
    assert codec.decode(codec.encode({"a": None, "c": ""})) == [None, ABSENT, ""]
    assert len(codec.encode({})) == len(codec.encode({"a": "", "b": "", "c": ""}))


def test_the_first_byte_is_the_schema_version() -> None:
    codec = RowCodec(ALL_TYPES)
    payload = codec.encode({"int64": 1})
    assert payload[0] == SCHEMA_VERSION
    with pytest.raises(UnreadablePayload, match=r"flight: payload of schema version 99, this build reads 1"):
        codec.decode(bytes([99]) + payload[1:])
    with pytest.raises(UnreadablePayload, match="schema version none"):
        codec.decode(b"")


@pytest.mark.parametrize(
    "damage",
    [lambda p: p[:-1], lambda p: p + b"x", lambda p: p[:3], lambda p: p[:1] + b"\x03" + p[2:]],
    ids=["cut", "longer", "header only", "impossible flag"],
)
def test_bytes_that_do_not_fit_the_view_are_an_error_not_a_guess(damage: Callable[[bytes], bytes]) -> None:
    codec = RowCodec(ALL_TYPES)
    with pytest.raises(UnreadablePayload, match=r"flight: a payload of \d+ bytes does not fit"):
        codec.decode(damage(codec.encode({"string": "late", "int64": 3})))


@PROPERTY
@given(st.binary(max_size=80))
def test_no_bytes_raise_anything_but_unreadable(payload: bytes) -> None:
    try:
        RowCodec(ALL_TYPES).decode(bytes([SCHEMA_VERSION]) + payload)
    except UnreadablePayload:
        pass


@pytest.mark.parametrize(
    ("kind", "default", "served"),
    [
        (FeatureType.BOOL, False, False),
        (FeatureType.INT64, 0, 0),
        (FeatureType.FLOAT64, 1, 1.0),
        (FeatureType.STRING, "é", "é"),
        (FeatureType.STRING, None, None),
        (FeatureType.BYTES, None, None),
    ],
)
def test_a_default_is_served_in_its_fields_type(kind: FeatureType, default: Any, served: Any) -> None:
    field = Field(name="f", type=kind, default=default)
    assert same(served_default(make_view(field), field), served)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (FeatureType.BOOL, 0),
        (FeatureType.INT64, 0.5),
        (FeatureType.FLOAT64, "0"),
        (FeatureType.STRING, 0),
        (FeatureType.BYTES, "raw"),
        (FeatureType.TIMESTAMP, "2013-01-01T00:00:00Z"),
    ],
)
def test_a_default_of_another_type_stops_the_declaration(kind: FeatureType, default: Any) -> None:
    field = Field(name="f", type=kind, default=default)
    with pytest.raises(ConfigurationError, match=r"feature flight\.f: default"):
        served_default(make_view(field, name="flight"), field)

"""Every value comes back as it was written, and nothing else is accepted."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import InvalidRequest
from featurestore.codec import ABSENT, INT64_MAX, INT64_MIN, SCHEMA_VERSION, RowCodec, UnreadablePayload
from featurestore.definitions import FeatureType, FeatureView, Field
from tests.featurestore.rows import PROPERTY, make_view
from tests.featurestore.values import fields, same, values_of

MONEY = Field(name="money", type=FeatureType.DECIMAL, decimal_places=2)
SURE = Field(name="sure", type=FeatureType.FLOAT64, refuse_nan=True)
SCALARS = [Field(name=kind.value, type=kind) for kind in FeatureType]
LISTS = [Field(name=f"{kind.value}_list", type=kind, is_list=True) for kind in FeatureType]
ALL_TYPES = make_view(*SCALARS, *LISTS, MONEY, SURE, name="flight")


@st.composite
def views_and_values(draw: st.DrawFn) -> tuple[FeatureView, dict[str, Any]]:
    """A view of one to nine fields in any order, and a row that leaves some out and has nulls in others."""
    count = draw(st.integers(1, 9))
    view = make_view(*(draw(fields(f"f{i}")) for i in range(count)), name="flight")
    values = {}
    for field in view.schema:
        value = draw(st.one_of(st.just(ABSENT), st.none(), values_of(field)))
        if value is not ABSENT:
            values[field.name] = value
    return view, values


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
        ("decimal", Decimal(10**38 - 1)),
        ("decimal", Decimal(1 - 10**38)),
        ("money", Decimal("999999999999999999999999999999999999.99")),
        ("money", Decimal("-0.01")),
        ("float64_list", []),
        ("float64_list", [math.nan, -0.0, -math.inf, 5e-324]),
        ("bool_list", [True, False]),
        ("int64_list", [INT64_MIN, INT64_MAX]),
        ("string_list", []),
        ("string_list", [""]),
        ("string_list", ["", "Zürich \U0001f6eb", "\0", ""]),
        ("bytes_list", [b"", b"\0\xff", b""]),
        ("timestamp_list", [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
        ("decimal_list", [Decimal(10**38 - 1), Decimal(0)]),
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


def test_a_decimal_comes_back_with_all_of_its_places() -> None:
    codec = RowCodec(make_view(MONEY))
    for written, stored in [
        (Decimal("1.5"), "1.50"),
        (Decimal("1E+2"), "100.00"),
        (7, "7.00"),
        (Decimal("1.500"), "1.50"),
    ]:
        [decoded] = codec.decode(codec.encode({"money": written}))
        assert str(decoded) == stored


def test_a_tuple_is_written_as_a_list() -> None:
    codec = RowCodec(make_view(Field(name="last", type=FeatureType.FLOAT64, is_list=True)))
    assert codec.decode(codec.encode({"last": (1, 2.5)})) == [[1.0, 2.5]]


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
        ("decimal", Decimal(10**38)),
        ("decimal", Decimal("0.5")),
        ("decimal", 10**400),
        ("decimal", True),
        ("decimal", 1.0),
        ("decimal", "1"),
        ("money", Decimal("0.001")),
        ("money", Decimal("NaN")),
        ("money", Decimal("sNaN")),
        ("money", Decimal("-Infinity")),
        ("sure", math.nan),
        ("int64_list", [1, None]),
        ("int64_list", [1, "2"]),
        ("int64_list", 1),
        ("int64_list", {1, 2}),
        ("string_list", "ab"),
        ("string_list", ["ok", "\ud800"]),
        ("bytes_list", b"ab"),
        ("float64_list", [[1.0]]),
        ("timestamp_list", [datetime(2013, 1, 1)]),
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


def test_a_refusal_names_the_entity_whose_row_it_is() -> None:
    codec = RowCodec(ALL_TYPES)
    with pytest.raises(InvalidRequest, match=r"flight\.sure = nan of entity 'N1': expected a number, .* refuses NaN"):
        codec.encode({"sure": math.nan}, "N1")
    with pytest.raises(InvalidRequest, match=r"flight\.delays of entity 'N1' is not in the view's schema"):
        codec.encode({"delays": 2}, "N1")


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


def test_rows_of_the_first_release_are_still_read() -> None:
    """Written by the build that knew six types: what is stored must not need to be written again."""
    old = make_view(*(Field(name=kind.value, type=kind) for kind in FeatureType if kind is not FeatureType.DECIMAL))
    payload = bytes.fromhex("01000001fdffffffffffffff000000000000f03f030000000200000000c097cf2ed20400c3a961ff00")
    assert RowCodec(old).decode(payload) == [
        True, -3, 1.0, "éa", b"\xff\0", datetime(2013, 1, 1, tzinfo=UTC)
    ]  # fmt: skip


def test_a_row_of_fifty_numbers_costs_eight_bytes_each() -> None:
    view = make_view(*(Field(name=f"f{i}", type=FeatureType.FLOAT64) for i in range(50)))
    assert len(RowCodec(view).encode({f"f{i}": float(i) for i in range(50)})) == 50 * 8 + 14


def test_a_list_costs_its_values_and_a_length() -> None:
    fields = Field(name="last", type=FeatureType.FLOAT64, is_list=True), Field(name="n", type=FeatureType.INT64)
    codec = RowCodec(make_view(*fields))
    assert len(codec.encode({"last": [1.0] * 10})) - len(codec.encode({"last": []})) == 80
    assert len(codec.encode({"last": []})) == len(codec.encode({}))


@pytest.mark.parametrize(
    "tail",
    [b"\x02\0\0\0\x01\0\0\0a", b"\xff\xff\xff\xff", b"\x01\0\0\0\x05\0\0\0ab", b"\x01\0\0\0\x01\0\0\0ab", b"\x01"],
    ids=["fewer lengths", "absurd count", "short", "longer", "no count"],
)
def test_a_damaged_list_of_strings_is_unreadable(tail: bytes) -> None:
    codec = RowCodec(make_view(Field(name="tags", type=FeatureType.STRING, is_list=True), name="flight"))
    header = bytes([SCHEMA_VERSION, 0]) + struct.pack("<I", len(tail))
    with pytest.raises(UnreadablePayload, match=r"flight: a payload of \d+ bytes does not fit"):
        codec.decode(header + tail)


def test_a_decimal_beyond_its_digits_is_unreadable() -> None:
    codec = RowCodec(make_view(MONEY, name="flight"))
    with pytest.raises(UnreadablePayload, match="flight: a payload of 18 bytes does not fit"):
        codec.decode(bytes([SCHEMA_VERSION, 0]) + b"\xff" * 15 + b"\x7f")

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.predictors.declaration import Column, ColumnKind
from core_engine.scoring.encoding import RowEncoder

NEW_YORK = timezone(timedelta(hours=-5))
DEPARTURE = datetime(2013, 11, 15, 17, 30, tzinfo=NEW_YORK)  # a Friday, day 319


def encode_one(kind: ColumnKind, value: object, values: tuple[str, ...] = ()) -> float:
    encoder = RowEncoder([Column(name="c", kind=kind, source="c", values=values)])
    return float(encoder.encode({"c": value})[0])


class TestOneRow:
    def test_columns_come_in_declared_order_as_float32(self) -> None:
        encoder = RowEncoder(
            [
                Column(name="carrier", kind=ColumnKind.CATEGORY, source="carrier", values=("AA", "UA")),
                Column(name="wind", kind=ColumnKind.NUMERIC, source="weather.wind"),
                Column(name="hour", kind=ColumnKind.HOUR, source="departure"),
                Column(name="weekday", kind=ColumnKind.WEEKDAY, source="departure"),
                Column(name="yearday", kind=ColumnKind.YEARDAY, source="departure"),
            ]
        )
        row = encoder.encode({"carrier": "UA", "departure": DEPARTURE}, {"weather.wind": 9})
        assert row.dtype == np.float32
        assert row.tolist() == [1.0, 9.0, 17.5, 4.0, 319.0]
        assert encoder.num_columns == 5

    def test_a_source_with_a_dot_is_read_from_the_features_only(self) -> None:
        encoder = RowEncoder([Column(name="w", kind=ColumnKind.NUMERIC, source="a.b")])
        assert np.isnan(encoder.encode({"a.b": 1.0}, {})).all()

    @pytest.mark.parametrize("kind", [k for k in ColumnKind if k is not ColumnKind.CATEGORY])
    def test_absent_is_nan(self, kind: ColumnKind) -> None:
        assert np.isnan(encode_one(kind, None))
        assert np.isnan(RowEncoder([Column(name="c", kind=kind, source="c")]).encode({}))

    def test_an_absent_and_an_unknown_category_are_minus_one(self) -> None:
        assert encode_one(ColumnKind.CATEGORY, None, ("AA",)) == -1
        assert encode_one(ColumnKind.CATEGORY, "ZZ", ("AA",)) == -1
        assert encode_one(ColumnKind.CATEGORY, "", ("AA",)) == -1

    def test_a_whole_number_is_a_category_by_its_digits(self) -> None:
        assert encode_one(ColumnKind.CATEGORY, 7, ("3", "7")) == 1

    @pytest.mark.parametrize("value", [1e300, -1e39, float("inf"), float("nan")])
    def test_a_number_that_float32_cannot_hold_is_absent(self, value: float) -> None:
        assert np.isnan(encode_one(ColumnKind.NUMERIC, value))

    def test_booleans_are_numbers(self) -> None:
        assert encode_one(ColumnKind.NUMERIC, True) == 1.0

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (ColumnKind.NUMERIC, "12"),
            (ColumnKind.NUMERIC, DEPARTURE),
            (ColumnKind.NUMERIC, 10**400),
            (ColumnKind.CATEGORY, 1.0),
            (ColumnKind.CATEGORY, True),
            (ColumnKind.HOUR, 17),
            (ColumnKind.WEEKDAY, "2013-11-15T17:30:00-05:00"),
            (ColumnKind.YEARDAY, datetime(2013, 11, 15)),  # naive
        ],
    )
    def test_another_type_is_refused_with_field_value_and_expectation(self, kind: ColumnKind, value: object) -> None:
        with pytest.raises(InvalidRequest, match="column c expects a") as caught:
            encode_one(kind, value, ("AA",) if kind is ColumnKind.CATEGORY else ())
        assert caught.value.field == "c"
        assert caught.value.value == value
        assert caught.value.expected is not None

    def test_times_are_read_on_their_own_clock(self) -> None:
        late_evening = datetime(2013, 12, 31, 23, 15, tzinfo=NEW_YORK)  # already next year in UTC
        assert encode_one(ColumnKind.HOUR, late_evening) == 23.25
        assert encode_one(ColumnKind.WEEKDAY, late_evening) == 1
        assert encode_one(ColumnKind.YEARDAY, late_evening) == 365
        assert encode_one(ColumnKind.HOUR, late_evening.astimezone(UTC)) == 4.25

    @given(weeks=st.integers(-2000, 2000))
    def test_a_shift_by_whole_weeks_keeps_hour_and_weekday(self, weeks: int) -> None:
        shifted = DEPARTURE + timedelta(weeks=weeks)
        for kind in (ColumnKind.HOUR, ColumnKind.WEEKDAY):
            assert encode_one(kind, shifted) == encode_one(kind, DEPARTURE)


class TestDeclarations:
    def test_no_columns_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="at least one column"):
            RowEncoder([])

    @pytest.mark.parametrize("values", [(), ("AA", "AA")])
    def test_a_category_needs_distinct_values(self, values: tuple[str, ...]) -> None:
        with pytest.raises(ConfigurationError, match="column c: the values"):
            RowEncoder([Column(name="c", kind=ColumnKind.CATEGORY, source="c", values=values)])


COLUMNS = (
    Column(name="carrier", kind=ColumnKind.CATEGORY, source="carrier", values=("AA", "UA", "7")),
    Column(name="gate", kind=ColumnKind.CATEGORY, source="gate", values=("7", "12")),
    Column(name="hour", kind=ColumnKind.HOUR, source="departure"),
    Column(name="weekday", kind=ColumnKind.WEEKDAY, source="departure"),
    Column(name="yearday", kind=ColumnKind.YEARDAY, source="departure"),
    Column(name="wind", kind=ColumnKind.NUMERIC, source="weather.wind"),
    Column(name="flights", kind=ColumnKind.NUMERIC, source="route.flights"),
    Column(name="is_open", kind=ColumnKind.NUMERIC, source="airport.is_open"),
)
ROWS = st.fixed_dictionaries(
    {
        "carrier": st.none() | st.sampled_from(["AA", "UA", "ZZ", "7", ""]),
        "gate": st.none() | st.integers(-3, 13),
        "departure": st.none()
        | st.datetimes(
            datetime(1902, 1, 1),
            datetime(2199, 12, 31),
            timezones=st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m))),
        ),
        "weather.wind": st.none() | st.floats(allow_nan=True, allow_infinity=True),
        "route.flights": st.none() | st.integers(-(2**53), 2**53),
        "airport.is_open": st.none() | st.booleans(),
    }
)
TYPES = {
    "carrier": pa.string(),
    "gate": pa.int64(),
    "departure": pa.timestamp("us", tz="UTC"),
    "weather.wind": pa.float64(),
    "route.flights": pa.int64(),
    "airport.is_open": pa.bool_(),
}


def row_by_row(rows: list[dict[str, Any]]) -> np.ndarray:
    encoder = RowEncoder(COLUMNS)
    return np.stack([encoder.encode(row, row) for row in rows])


def offsets_of(rows: list[dict[str, Any]]) -> np.ndarray:
    times = [row["departure"] for row in rows]
    return np.array([0 if t is None else t.utcoffset().total_seconds() for t in times], dtype=np.int64)


class TestTableEqualsRows:
    """One definition: what a model is trained on is what it is served."""

    @given(rows=st.lists(ROWS, min_size=1, max_size=20))
    def test_arrow_table(self, rows: list[dict[str, Any]]) -> None:
        table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()})
        encoded = RowEncoder(COLUMNS).encode_table(table, {"departure": offsets_of(rows)})
        np.testing.assert_array_equal(encoded, row_by_row(rows))
        assert encoded.dtype == np.float32

    @given(rows=st.lists(ROWS, min_size=1, max_size=20))
    def test_object_arrays(self, rows: list[dict[str, Any]]) -> None:
        table = {name: np.array([row[name] for row in rows], dtype=object) for name in TYPES}
        np.testing.assert_array_equal(RowEncoder(COLUMNS).encode_table(table), row_by_row(rows))

    def test_no_rows(self) -> None:
        table = pa.table({name: pa.array([], kind) for name, kind in TYPES.items()})
        encoded = RowEncoder(COLUMNS).encode_table(table, {"departure": np.array([], dtype=np.int64)})
        assert encoded.shape == (0, len(COLUMNS))


class TestTableRefusals:
    def encode(self, kind: ColumnKind, values: np.ndarray, offsets_s: Mapping[str, np.ndarray] | None = None) -> None:
        column = Column(name="c", kind=kind, source="c", values=("AA",) if kind is ColumnKind.CATEGORY else ())
        RowEncoder([column]).encode_table({"c": values}, offsets_s or {})

    def test_a_column_that_is_not_there(self) -> None:
        with pytest.raises(ConfigurationError, match=r"no column 'carrier'; it has \['hour'\]"):
            RowEncoder(COLUMNS).encode_table({"hour": np.zeros(1)})

    def test_times_without_offsets(self) -> None:
        with pytest.raises(ConfigurationError, match="needs the UTC offsets of c"):
            self.encode(ColumnKind.HOUR, np.array(["2013-11-15T17:30"], dtype="datetime64[us]"))

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (ColumnKind.NUMERIC, np.array([1.0, "x"], dtype=object)),
            (ColumnKind.NUMERIC, np.array(["2013-11-15"], dtype="datetime64[us]")),
            (ColumnKind.HOUR, np.array([1.0])),
            (ColumnKind.HOUR, np.array([DEPARTURE, DEPARTURE.replace(tzinfo=None)], dtype=object)),
            (ColumnKind.CATEGORY, np.array([1.5])),
        ],
    )
    def test_another_type(self, kind: ColumnKind, values: np.ndarray) -> None:
        with pytest.raises(InvalidRequest, match="column c expects a"):
            self.encode(kind, values)

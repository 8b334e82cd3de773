"""A served row comes back from its frame exactly, whatever types its values have."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FeatureState
from featurestore.consistency.comparison import same
from featurestore.consistency.served_rows import HEAD, LARGEST_BODY, ServedRow, ServedView, from_body, to_frame
from tests.featurestore.consistency.rows import NOON, served_row

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    st.datetimes(timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=5))


def round_trip(row: ServedRow) -> ServedRow:
    frame = to_frame(row)
    num_bytes, checksum = HEAD.unpack_from(frame.data)
    body = frame.data[HEAD.size :]
    assert (frame.at_us, num_bytes) == (row.at_us, len(body))
    return from_body(body, checksum)


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_every_feature_type_comes_back_exactly(values: list[Any]) -> None:
    row = served_row(NOON, *values)
    (view,) = round_trip(row).views
    assert same(view.values, row.views[0].values)


@pytest.mark.parametrize(
    "value",
    [
        *(-0.0, math.inf, struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\x7f")[0], 5e-324),
        *(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), 2**63 - 1, True, 1),
        *(Decimal("1.50"), Decimal("9" * 38), "", "é\u4e2d", b"", b"\xff\x00", [], [Decimal("0.1"), Decimal(2)]),
    ],
)
def test_bounds_and_look_alikes_keep_their_type_and_their_bits(value: Any) -> None:
    (view,) = round_trip(served_row(NOON, value)).views
    assert type(view.values[0]) is type(value)
    assert repr(view.values[0]) == repr(value)
    if isinstance(value, float):
        assert struct.pack("<d", view.values[0]) == struct.pack("<d", value)


def test_states_keys_versions_and_a_failure_come_back() -> None:
    states = tuple(FeatureState)
    view = ServedView("weather", 7, "JFK%2D4", None, tuple("abcde"), states, (1, 2, None, None, 5), "store_unavailable")
    row = ServedRow(-1, (view, served_row().views[0]))
    assert round_trip(row) == row


@pytest.mark.parametrize(
    "value",
    [object(), 2**64, {"a": 1}, "\ud800", {1}, datetime(2026, 1, 1), b"x" * (LARGEST_BODY + 1)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_of_no_feature_type_or_too_large_is_refused_whole(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        to_frame(served_row(NOON, 1, value))


def test_a_body_with_one_bit_changed_is_refused() -> None:
    frame = to_frame(served_row())
    body = bytearray(frame.data[HEAD.size :])
    body[len(body) // 2] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        from_body(bytes(body), HEAD.unpack_from(frame.data)[1])

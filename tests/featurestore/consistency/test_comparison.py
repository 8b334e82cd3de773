"""Every pair of a served and a recomputed value is in the one class that says what is wrong with it."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FeatureState as S
from featurestore.consistency.comparison import Cause, Known, Outcome, cause, compare, same

NAN_2 = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\x7f")[0]
INSTANT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("served", "offline", "expected"),
    [
        ((1.5, S.PRESENT), (1.5, S.PRESENT), Outcome.MATCH),
        ((math.nan, S.PRESENT), (NAN_2, S.PRESENT), Outcome.MATCH),
        ((None, S.NULL), (None, S.NULL), Outcome.MATCH),
        ((None, S.MISSING), (None, S.MISSING), Outcome.MATCH),
        ((1, S.STALE), (1, S.STALE), Outcome.MATCH),
        ((1.5, S.PRESENT), (math.nextafter(1.5, 2), S.PRESENT), Outcome.VALUE),
        ((0.0, S.PRESENT), (-0.0, S.PRESENT), Outcome.VALUE),
        ((1, S.STALE), (2, S.STALE), Outcome.VALUE),
        ((1, S.DEFAULT), (2, S.DEFAULT), Outcome.VALUE),
        ((0, S.DEFAULT), (5, S.PRESENT), Outcome.VALUE),
        ((0, S.DEFAULT), (0, S.PRESENT), Outcome.STATE),
        ((None, S.NULL), (1, S.PRESENT), Outcome.NULL),
        ((1, S.PRESENT), (None, S.NULL), Outcome.NULL),
        ((None, S.STALE), (1, S.STALE), Outcome.NULL),
        ((None, S.MISSING), (1, S.PRESENT), Outcome.MISSING),
        ((None, S.MISSING), (None, S.NULL), Outcome.MISSING),
        ((None, S.MISSING), (1, S.STALE), Outcome.EXPIRED),
        ((1, S.STALE), (1, S.PRESENT), Outcome.STALE),
        ((1, S.STALE), (0, S.DEFAULT), Outcome.STALE),
        ((1, S.PRESENT), (None, S.MISSING), Outcome.UNEXPECTED),
        ((1, S.STALE), (None, S.MISSING), Outcome.UNEXPECTED),
        ((1, S.PRESENT), (1, S.STALE), Outcome.UNEXPECTED),
    ],
)
def test_states_and_values_make_the_class(served: tuple[Any, S], offline: tuple[Any, S], expected: Outcome) -> None:
    assert compare(Known(*served, None), Known(*offline, None), has_failed=False) is expected


def test_a_failed_read_is_its_own_class_where_history_knew_something() -> None:
    missing = Known(None, S.MISSING, None)
    assert compare(missing, Known(1, S.PRESENT, 0), has_failed=True) is Outcome.FAILED
    assert compare(missing, missing, has_failed=True) is Outcome.MATCH
    found = Known(1, S.PRESENT, 0)
    assert compare(found, found, has_failed=True) is Outcome.MATCH  # another view's payload was the unreadable one


@pytest.mark.parametrize(
    ("served_us", "event_us", "known_us", "materialized_us", "expected"),
    [
        (10, 20, 25, None, Cause.LATE),
        (20, 10, 15, None, Cause.AHEAD),
        (10, 10, 12, 15, Cause.WRONG),
        (10, 10, 18, 15, Cause.LATE),  # a correction of the same event, known after the materialisation
        (10, 10, 12, None, Cause.UNKNOWN),
        (10, 10, 10, None, Cause.WRONG),  # known as it happened: there is nothing to be late with
        (10, 10, 10, 5, Cause.WRONG),
        (None, 10, 12, 15, Cause.WRONG),  # it had been brought, and is gone
        (None, 10, 18, 15, Cause.LATE),
        (None, 10, 12, None, Cause.UNKNOWN),
        (10, None, None, 15, Cause.UNKNOWN),
    ],
)
def test_both_clocks_tell_late_from_wrong(
    served_us: int | None, event_us: int | None, known_us: int | None, materialized_us: int | None, expected: Cause
) -> None:
    served, offline = Known(1, S.PRESENT, served_us), Known(2, S.PRESENT, event_us, known_us)
    assert cause(served, offline, materialized_us) is expected


LOOK_ALIKES: list[Any] = [
    1,
    1.0,
    True,
    "1",
    b"1",
    Decimal(1),
    [1],
    [1.0],
    [True],
    [],
    None,
    0,
    0.0,
    -0.0,
    False,
    INSTANT,
]


@pytest.mark.parametrize("a", range(len(LOOK_ALIKES)))
def test_no_value_is_the_same_as_a_look_alike_of_another_type(a: int) -> None:
    assert [same(LOOK_ALIKES[a], other) for other in LOOK_ALIKES] == [a == b for b in range(len(LOOK_ALIKES))]


@given(st.lists(st.floats()))
def test_a_list_is_the_same_as_itself_and_no_longer_one(values: list[float]) -> None:
    assert same(values, list(values))
    assert not same(values, [*values, 0.0])

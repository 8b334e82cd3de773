"""Each function gives what its declaration says, and is null where that is not defined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType
from featurestore.on_demand.clocks import FEW
from featurestore.on_demand.declaration import (
    AnyTransform,
    Bucket,
    Cross,
    Custom,
    DayOfWeek,
    Difference,
    HashBucket,
    Haversine,
    HourOfDay,
    Log1p,
    Ratio,
)
from featurestore.on_demand.functions import EARTH_RADIUS_KM, function_of, objects
from tests.featurestore.rows import PROPERTY
from tests.featurestore.values import INSTANTS

USERS = "tests.featurestore.on_demand.functions_of_a_user"
ZONES = ("America/New_York", "Europe/London", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")


def column(values: Sequence[Any]) -> Any:
    if isinstance(values[0], datetime):
        return np.array([value.astimezone(UTC).replace(tzinfo=None) for value in values], "datetime64[us]")
    return np.array(values) if isinstance(values[0], bool | int | float) else objects(values)


def computed(transform: AnyTransform, *operands: Sequence[Any]) -> list[Any]:
    """The function's values, None where it is not defined."""
    result = function_of(transform)([column(operand) for operand in operands])
    is_defined = result.is_defined
    return [v if is_defined is None or is_defined[i] else None for i, v in enumerate(result.values.tolist())]


@pytest.mark.parametrize(
    ("value", "digest"),  # of `b2sum -l 64`
    [
        ("JFK", "bcfc05b1a292b502"),
        ("é", "cb1abf8beff3192f"),
        ("", "e4a6a0577479b2b4"),
        (42, "bc950801ed9d1034"),
        (True, "3304bc7bb02905fd"),
        (b"\xff\0", "8be98a3d14d420eb"),
        (datetime(1970, 1, 1, 0, 0, 0, 42, tzinfo=UTC), "bc950801ed9d1034"),
    ],
)
def test_a_bucket_is_that_of_blake2b_on_every_machine(value: Any, digest: str) -> None:
    wanted = int.from_bytes(bytes.fromhex(digest), "little")
    for buckets in (1, 1000, 2**63 - 1):
        assert computed(HashBucket(of=("a.b",), buckets=buckets), [value, value]) == [wanted % buckets] * 2


def test_salted_buckets_collide_at_other_values() -> None:
    words = [str(i) for i in range(400)]
    one, other = (computed(HashBucket(of=("a.b",), buckets=100, salt=salt), words) for salt in ("one", "other"))
    assert one != other
    assert len(set(one)) > 90  # of 100: all buckets are used
    assert all(0 <= bucket < 100 for bucket in one)


def test_a_bucket_counts_the_boundaries_at_or_below() -> None:
    transform = Bucket(of=("a.b",), boundaries=(0.0, 10.0))
    assert computed(transform, [-math.inf, -0.1, -0.0, 9.9, 10.0, math.inf, math.nan]) == [0, 0, 1, 1, 2, 2, None]
    assert computed(transform, [Decimal("9.99"), Decimal(10)]) == [1, 2]
    assert computed(transform, [-1, 0, 11]) == [0, 1, 2]


def test_a_cross_keeps_apart_what_concatenation_would_mix() -> None:
    transform = Cross(of=("a.b", "a.c"))
    assert computed(transform, ["a-b", "a"], ["c", "b-c"]) == ["a%2Db-c", "a-b%2Dc"]
    assert computed(transform, [True, False], [-7, 7]) == ["1-%2D7", "0-7"]


def test_a_ratio_by_zero_is_null() -> None:
    assert computed(Ratio(of=("a.b", "a.c")), [6.0, 1.0, 0.0, 5.0], [4.0, 0.0, -0.0, math.inf]) == [
        1.5,
        None,
        None,
        0.0,
    ]
    assert computed(Ratio(of=("a.b", "a.c")), [Decimal("0.3")], [2]) == [0.15]


def test_a_difference_of_numbers_is_a_number_and_of_instants_seconds() -> None:
    assert computed(Difference(of=("a.b", "a.c")), [1, 2], [0.5, 4.0]) == [0.5, -2.0]
    before = datetime(2013, 3, 10, 1, tzinfo=ZoneInfo("America/New_York"))
    after = datetime(2013, 3, 10, 3, 0, 0, 5, tzinfo=ZoneInfo("America/New_York"))  # an hour later: clocks went forward
    assert computed(Difference(of=("a.b", "a.c")), [after], [before]) == [3600.000005]


def test_log1p_is_null_where_there_is_no_logarithm() -> None:
    got = computed(Log1p(of=("a.b",)), [0.0, 1e-20, math.e - 1, -1.0, -2.0, math.nan])
    assert got[:2] == [0.0, 1e-20]
    assert got[2] == pytest.approx(1.0)
    assert got[3:5] == [None, None]
    assert math.isnan(got[5])


@pytest.mark.parametrize(
    ("one", "other", "km"),  # airports, and the distance that airlines publish (on the ellipsoid: within 0.5 %)
    [
        ((40.6413, -73.7781), (33.9416, -118.4085), 3983),  # JFK - LAX
        ((40.6413, -73.7781), (51.4700, -0.4543), 5540),  # JFK - LHR
        ((-33.9399, 151.1753), (-34.8222, -58.5358), 11_800),  # SYD - EZE
        ((1.3644, 103.9915), (40.6895, -74.1745), 15_344),  # SIN - EWR
        ((35.5494, 139.7798), (37.6213, -122.3790), 8_283),  # HND - SFO, across the date line
    ],
)
def test_known_distances_are_found(one: tuple[float, float], other: tuple[float, float], km: float) -> None:
    [there] = computed(Haversine(of=("a.a", "a.b", "a.c", "a.d")), [one[0]], [one[1]], [other[0]], [other[1]])
    [back] = computed(Haversine(of=("a.a", "a.b", "a.c", "a.d")), [other[0]], [other[1]], [one[0]], [one[1]])
    assert there == pytest.approx(km, rel=5e-3)
    assert there == pytest.approx(back, rel=1e-12)


def test_the_sphere_has_the_stated_radius() -> None:
    latitude, longitude = [0.0, 90.0, 10.0, 10.0, 0.0], [0.0, 0.0, 20.0, 179.0, 0.0]
    to_latitude, to_longitude = [0.0, -90.0, 10.0, 10.0, 0.0], [90.0, 50.0, 20.0, -181.0, 180.0]
    got = computed(Haversine(of=("a.a", "a.b", "a.c", "a.d")), latitude, longitude, to_latitude, to_longitude)
    radians = [math.pi / 2, math.pi, 0.0, 0.0, math.pi]
    assert got == pytest.approx([EARTH_RADIUS_KM * angle for angle in radians], abs=1e-6)


@pytest.mark.parametrize("point", [(90.1, 0.0), (-91.0, 0.0), (math.nan, 0.0), (0.0, math.inf), (math.inf, 0.0)])
def test_a_place_that_is_not_on_earth_has_no_distance(point: tuple[float, float]) -> None:
    transform = Haversine(of=("a.a", "a.b", "a.c", "a.d"))
    assert computed(transform, [point[0]], [point[1]], [1.0], [2.0]) == [None]
    assert computed(transform, [1.0], [2.0], [point[0]], [point[1]]) == [None]


@pytest.mark.parametrize("day", [datetime(2013, 3, 10, tzinfo=UTC), datetime(2013, 11, 3, tzinfo=UTC)])
def test_hours_follow_the_clocks_on_the_days_when_they_change(day: datetime) -> None:
    instants = [day + timedelta(minutes=15 * i) for i in range(4 * 36)]
    local = [instant.astimezone(ZoneInfo("America/New_York")) for instant in instants]
    assert computed(HourOfDay(of=("a.b",), time_zone="America/New_York"), instants) == [at.hour for at in local]
    assert computed(DayOfWeek(of=("a.b",), time_zone="America/New_York"), instants) == [at.weekday() for at in local]


@PROPERTY
@given(st.lists(INSTANTS, min_size=1, max_size=3 * FEW), st.sampled_from(ZONES))
def test_hours_and_weekdays_are_those_of_the_time_zone_database(instants: list[datetime], zone: str) -> None:
    local = [instant.astimezone(ZoneInfo(zone)) for instant in instants]
    assert computed(HourOfDay(of=("a.b",), time_zone=zone), instants) == [at.hour for at in local]
    assert computed(DayOfWeek(of=("a.b",), time_zone=zone), instants) == [at.weekday() for at in local]


@pytest.mark.parametrize("instant", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_ends_of_the_calendar_have_hours_too(instant: datetime, zone: str) -> None:
    """Year 9999 is how many a table writes "for ever"."""
    inside = instant + timedelta(days=7 if instant.year == 1 else -7)
    for times in (1, FEW):
        hours = computed(HourOfDay(of=("a.b",), time_zone=zone), [instant, inside] * times)
        assert len(set(hours)) == 1


def test_an_hour_in_which_clocks_change_is_told_by_its_parts() -> None:
    """Adelaide is nine and a half hours ahead: at 16:30 UTC its clocks went from 02:00 to 03:00."""
    change = datetime(2013, 10, 5, 16, 30, tzinfo=UTC)
    for times in (1, FEW):
        instants = [change - timedelta(seconds=1), change] * times
        assert computed(HourOfDay(of=("a.b",), time_zone="Australia/Adelaide"), instants) == [1, 3] * times


@pytest.mark.parametrize(
    ("name", "returns", "given_values", "wanted"),
    [
        ("initials", FeatureType.STRING, ["Zoë", ""], ["Z", ""]),
        ("capped", FeatureType.FLOAT64, [1.5, 99.0], [1.5, 10.0]),
        ("root", FeatureType.FLOAT64, [4.0, -4.0], [2.0, None]),
        ("length_of", FeatureType.INT64, [[1, 2], []], [2, 0]),
        ("next_day", FeatureType.TIMESTAMP, [datetime(2013, 1, 1, tzinfo=UTC)], [datetime(2013, 1, 2)]),
    ],
)
def test_a_users_function_is_called_with_whole_columns(
    name: str, returns: FeatureType, given_values: list[Any], wanted: list[Any]
) -> None:
    transform = Custom(of=("a.b",), function=f"{USERS}:{name}", returns=returns)
    assert computed(transform, given_values) == wanted


@pytest.mark.parametrize(
    ("name", "returns", "message"),
    [
        ("fails", FeatureType.FLOAT64, r"failed: RuntimeError\('no such card'\)"),
        ("writes", FeatureType.FLOAT64, "failed: ValueError.*read-only"),
        ("total", FeatureType.FLOAT64, r"gave shape \(\); expected \(2,\), one per row"),
        ("halves", FeatureType.INT64, "gave float64; declared is int64"),
        ("words_or_numbers", FeatureType.STRING, "gave int; declared is string"),
        ("words_or_numbers", FeatureType.FLOAT64, "gave object; declared is float64"),
    ],
)
def test_a_users_function_that_breaks_its_declaration_is_refused_by_name(
    name: str, returns: FeatureType, message: str
) -> None:
    transform = Custom(of=("a.b",), function=f"{USERS}:{name}", returns=returns)
    with pytest.raises(ConfigurationError, match=rf"function {USERS}:{name} {message}"):
        computed(transform, [7.0, 2.0])

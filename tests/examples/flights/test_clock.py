from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights.clock import FIRST_INSTANT, WEEK, shifted_clock
from examples.flights.data import FlightData
from examples.flights.training import HELD_OUT_FROM, LEAD

ANY_INSTANT = st.datetimes(
    datetime(1975, 1, 1),
    datetime(2190, 1, 1),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
YEAR_ENDS = [datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) for year in (2013, 2024, 2025, 2026, 2037)]


def check(now: datetime) -> None:
    clock = shifted_clock(now)
    then = clock.to_data(now)
    assert FIRST_INSTANT <= then < FIRST_INSTANT + WEEK
    assert clock.shift % WEEK == timedelta()
    assert (then.weekday(), then.timetz()) == (now.weekday(), now.timetz())
    assert clock.to_real(then) == now
    assert clock.to_real(then).utcoffset() == now.utcoffset()


@pytest.mark.parametrize("year_end", YEAR_ENDS, ids=str)
def test_every_hour_around_a_year_end(year_end: datetime) -> None:
    for hour in range(-7 * 24, 7 * 24 + 1):
        check(year_end + timedelta(hours=hour))


@pytest.mark.parametrize("weekday", range(7))
@pytest.mark.parametrize("hour", range(24))
def test_every_weekday_and_hour(weekday: int, hour: int) -> None:
    check(datetime(2026, 3, 2 + weekday, hour, 59, tzinfo=UTC))


@given(now=ANY_INSTANT)
def test_any_instant(now: datetime) -> None:
    check(now)


@pytest.mark.parametrize("edge", [FIRST_INSTANT, FIRST_INSTANT + WEEK - timedelta(microseconds=1)])
def test_no_shift_inside_the_week_itself(edge: datetime) -> None:
    assert shifted_clock(edge).shift == timedelta()
    assert shifted_clock(edge + timedelta(microseconds=1) - WEEK).shift <= timedelta()


def test_a_naive_now_is_refused() -> None:
    with pytest.raises(ValueError, match="has no UTC offset"):
        shifted_clock(datetime(2026, 1, 1))


def test_the_week_is_held_out_with_history_before_it_and_flights_after_it(data: FlightData) -> None:
    departures = data.flights["scheduled_departure"].to_numpy()
    first = np.datetime64(FIRST_INSTANT.replace(tzinfo=None))
    assert FIRST_INSTANT.date() > HELD_OUT_FROM
    assert departures.min() < first - np.timedelta64(300, "D")
    assert (departures >= first + np.timedelta64(WEEK + LEAD)).sum() > 30_000

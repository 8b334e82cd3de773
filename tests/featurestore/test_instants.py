from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import InvalidRequest
from featurestore.instants import duration_us, from_us, to_us, utc_now
from tests.featurestore.rows import PROPERTY

MIN_US = to_us(datetime.min.replace(tzinfo=UTC), "min")
MAX_US = to_us(datetime.max.replace(tzinfo=UTC), "max")


class NoOffset(tzinfo):
    """A timezone that does not say where it is: aware in name only."""

    def utcoffset(self, instant: datetime | None) -> timedelta | None:
        return None

    def dst(self, instant: datetime | None) -> timedelta | None:
        return None

    def tzname(self, instant: datetime | None) -> str | None:
        return "nowhere"


@PROPERTY
@given(st.integers(MIN_US, MAX_US))
def test_every_microsecond_of_the_calendar_comes_back(us: int) -> None:
    assert to_us(from_us(us), "instant") == us


def test_the_offset_counts() -> None:
    noon = datetime(2013, 7, 1, 12, tzinfo=timezone(timedelta(hours=-4)))
    assert from_us(to_us(noon, "noon")) == datetime(2013, 7, 1, 16, tzinfo=UTC)


@pytest.mark.parametrize("naive", [datetime(2013, 1, 1), datetime(2013, 1, 1, tzinfo=NoOffset()), 1_356_998_400, None])
def test_what_is_not_aware_is_refused_by_name(naive: datetime) -> None:
    with pytest.raises(InvalidRequest, match=r"departure = .*: expected a datetime with a timezone") as refused:
        to_us(naive, "departure")
    assert refused.value.field == "departure"


def test_durations_are_whole_microseconds() -> None:
    assert duration_us(0.1) == 100_000
    assert duration_us(7 * 86_400) == 604_800_000_000


def test_the_wall_clock_is_aware() -> None:
    assert utc_now().utcoffset() == timedelta()

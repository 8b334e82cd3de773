"""Instants as the store keeps them: aware datetimes outside, whole microseconds since 1970 inside.

Both stores compare integers, so that no instant is rounded through a float. A naive datetime is refused here, once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from core_engine.errors import InvalidRequest

Clock: TypeAlias = Callable[[], datetime]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def utc_now() -> datetime:
    """This machine's wall clock, aware."""
    return datetime.now(UTC)


def to_us(instant: datetime, what: str) -> int:
    """Whole microseconds since 1970 of an aware datetime.

    Raises:
        InvalidRequest: naming `what`, for anything that is no aware datetime.
    """
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        expected = "a datetime with a timezone"
        raise InvalidRequest(f"{what} = {instant!r}: expected {expected}", field=what, value=instant, expected=expected)
    return (instant - EPOCH) // MICROSECOND


def from_us(us: int) -> datetime:
    """The instant in UTC. Raises `OverflowError` outside the years 1 to 9999."""
    return EPOCH + timedelta(microseconds=us)


def duration_us(seconds: float) -> int:
    return round(seconds * 1_000_000)

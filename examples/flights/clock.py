"""The shifted clock: 2013 moved to now by whole weeks, so that hours, weekdays and ages keep their meaning.

Without it every stored value would be stale against today's TTL. A pure function of now; nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

WEEK = timedelta(days=7)
# Now falls into the seven days from here (UTC): held out, without a holiday or a change of clocks, ten months of
# history before it and six weeks of flights after it.
FIRST_INSTANT = datetime(2013, 11, 11, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ShiftedClock:
    """Data time + `shift` = real time. Both conversions keep the UTC offset of what they are given."""

    shift: timedelta

    def to_data(self, real: datetime) -> datetime:
        return real - self.shift

    def to_real(self, data: datetime) -> datetime:
        return data + self.shift


def shifted_clock(now: datetime) -> ShiftedClock:
    """The one multiple of seven days that puts the aware instant `now` into the week from `FIRST_INSTANT`.

    Raises:
        ValueError: `now` is naive.
    """
    if now.tzinfo is None:
        raise ValueError(f"now = {now!r} has no UTC offset; pass an aware instant")
    return ShiftedClock((now - FIRST_INSTANT) // WEEK * WEEK)

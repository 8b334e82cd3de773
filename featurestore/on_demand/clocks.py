"""The clocks of a time zone for whole columns of instants, exact on the days when they change and in every year.

Arrow's own functions know no change after 2037, and nobody keeps two databases of time zones alike; so offsets come
from Python's `zoneinfo`, once per hour that occurs in the column.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from featurestore.instants import MICROSECOND, from_us, to_us

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
FEW: Final = 16  # rows up to which asking for each is faster: 3 instead of 30 us for one row of a request
_THURSDAY: Final = 3  # 1970-01-01
_FIRST_US: Final = to_us(datetime(1, 1, 3, tzinfo=UTC), "first")  # nearer to the calendar's ends an offset leaves it
_LAST_US: Final = to_us(datetime(9999, 12, 29, tzinfo=UTC), "last")


def is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, such as America
        return False
    return True


class ZoneClock:
    """The clocks of the zone `name` (IANA). Arrays are [num_rows]; instants are datetime64[us] in UTC."""

    def __init__(self, name: str) -> None:
        self._zone = ZoneInfo(name)

    def hours(self, instants: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """0 to 23."""
        return self._wall_us(instants) // HOUR_US % 24

    def weekdays(self, instants: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """0 (Monday) to 6."""
        return (self._wall_us(instants) // DAY_US + _THURSDAY) % 7

    def _wall_us(self, instants: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """What the clocks show, as microseconds since they showed the beginning of 1970."""
        us = instants.astype(np.int64)
        if len(us) < FEW:
            return np.array([at + self._offset_us(at) for at in us.tolist()], np.int64)
        hours, places = np.unique(us // HOUR_US, return_inverse=True)
        first = np.array([self._offset_us(hour * HOUR_US) for hour in hours.tolist()])
        last = np.array([self._offset_us((hour + 1) * HOUR_US - 1) for hour in hours.tolist()])
        offsets: npt.NDArray[np.int64] = first[places]
        for i in np.flatnonzero((first != last)[places]).tolist():  # an hour in which the clocks change
            offsets[i] = self._offset_us(int(us[i]))
        return np.add(us, offsets)

    def _offset_us(self, us: int) -> int:
        offset = from_us(min(max(us, _FIRST_US), _LAST_US)).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset // MICROSECOND

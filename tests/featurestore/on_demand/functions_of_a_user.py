"""What a user might write: functions on arrays, good and bad."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NOT_A_FUNCTION = 7


def initials(names: Array) -> Array:
    return np.array([name[:1] for name in names], np.object_)


def capped(numbers: Array) -> Array:
    return np.minimum(numbers, 10.0)


def root(numbers: Array) -> Array:
    """Null where there is none."""
    masked: Array = np.ma.masked_where(numbers < 0, np.sqrt(np.abs(numbers)))
    return masked


def next_day(instants: Array) -> Array:
    return instants + np.timedelta64(1, "D")


def length_of(lists: Array) -> Array:
    return np.array([len(values) for values in lists])


def words_or_numbers(numbers: Array) -> Array:
    return np.array(["many" if number > 5 else 1 for number in numbers], np.object_)


def total(numbers: Array) -> Any:
    return numbers.sum()


def halves(numbers: Array) -> Array:
    return numbers / 2


def fails(numbers: Array) -> Array:
    raise RuntimeError("no such card")


def writes(numbers: Array) -> Array:
    numbers[0] = 0.0
    return numbers

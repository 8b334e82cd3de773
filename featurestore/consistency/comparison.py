"""One served value against the same value from history: which class the pair is in, and why where that can be told."""

from __future__ import annotations

import enum
import math
import struct
from typing import Any, Final, NamedTuple

from core_engine.contracts import FeatureState


class Outcome(enum.StrEnum):
    """What became of one served value. All but `MATCH` and `EXPIRED` are faults of the online side or of history."""

    MATCH = "match"  # the same state and the same value
    VALUE = "value"  # both are known, with other values
    NULL = "null"  # one of them is null
    STATE = "state"  # the same value, but one of them is a default
    UNEXPECTED = "unexpected"  # served fresh, where history knew nothing or only what was past its TTL
    MISSING = "missing"  # served as missing, where history knew a fresh row
    STALE = "stale"  # served as stale, where history knew a fresh row
    EXPIRED = "expired"  # served as missing, where history knew only what was past its TTL: neither can be used
    FAILED = "failed"  # missing, because the read failed


MISMATCHED: Final = frozenset({Outcome.VALUE, Outcome.NULL, Outcome.STATE, Outcome.UNEXPECTED})
LACKING: Final = frozenset({Outcome.MISSING, Outcome.FAILED})


class Cause(enum.StrEnum):
    """Why a pair differs, as far as both clocks tell."""

    LATE = "late"  # late materialisation: the online store had not been brought the row that history knew
    AHEAD = "ahead"  # the online store had a newer row than history
    WRONG = "wrong"  # that row had been brought, and is not what was served
    UNKNOWN = "unknown"


class Known(NamedTuple):
    """A value on one side, with the instants of its row: what it is about, and (history only) when it was known.

    Microseconds since 1970; None where there is no row, or where it cannot be told.
    """

    value: Any
    state: FeatureState
    event_us: int | None
    known_us: int | None = None


def compare(served: Known, offline: Known, *, has_failed: bool) -> Outcome:
    """`has_failed`: the read of the served row told of a failure."""
    match served.state, offline.state:
        case FeatureState.MISSING, FeatureState.MISSING:
            return Outcome.MATCH
        case FeatureState.MISSING, _ if has_failed:
            return Outcome.FAILED
        case FeatureState.MISSING, FeatureState.STALE:
            return Outcome.EXPIRED
        case FeatureState.MISSING, _:
            return Outcome.MISSING
        case FeatureState.STALE, FeatureState.STALE:
            return _by_value(served, offline)
        case _, FeatureState.MISSING:
            return Outcome.UNEXPECTED
        case FeatureState.STALE, _:
            return Outcome.STALE
        case _, FeatureState.STALE:
            return Outcome.UNEXPECTED
    return _by_value(served, offline)


def _by_value(served: Known, offline: Known) -> Outcome:
    if same(served.value, offline.value):
        return Outcome.MATCH if served.state is offline.state else Outcome.STATE
    return Outcome.NULL if served.value is None or offline.value is None else Outcome.VALUE


def cause(served: Known, offline: Known, materialized_us: int | None) -> Cause:
    """Of a pair that differs. `materialized_us`: up to when the view had been materialised by then, where known.

    Another event time says it alone. With the same one, history may hold a correction that came later.
    """
    if served.event_us is not None and offline.event_us is not None and served.event_us != offline.event_us:
        return Cause.LATE if served.event_us < offline.event_us else Cause.AHEAD
    if served.event_us is not None and served.event_us == offline.known_us:
        return Cause.WRONG  # known as it happened: no correction of it came later
    if offline.known_us is None or materialized_us is None:
        return Cause.UNKNOWN
    return Cause.LATE if offline.known_us > materialized_us else Cause.WRONG


def same(served: Any, offline: Any) -> bool:
    """Exact by type: doubles by their bits or both NaN, lists element by element, no int equal to a float or bool."""
    if isinstance(served, float) and isinstance(offline, float):
        return _bits(served) == _bits(offline) or (math.isnan(served) and math.isnan(offline))
    if isinstance(served, list | tuple) and isinstance(offline, list | tuple):
        return len(served) == len(offline) and all(map(same, served, offline))
    return type(served) is type(offline) and bool(served == offline)


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)

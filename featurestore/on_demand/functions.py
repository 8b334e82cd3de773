"""What each transform computes: pure functions of columns, element by element, the same for one row and for millions.

A function takes one array per operand, all of one length and every element a value: bool, int64, float64,
datetime64[us] (UTC), or objects (str, bytes, Decimal, lists). It gives an array of that length, and where its result is
undefined. Nothing here knows of states, requests or stores.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from core_engine.contracts import entity_key
from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType
from featurestore.on_demand import declaration as on_demand
from featurestore.on_demand.clocks import ZoneClock

EARTH_RADIUS_KM: Final = 6371.0088  # mean radius R1 = (2a + b) / 3 of the WGS 84 ellipsoid

Array: TypeAlias = npt.NDArray[Any]
Function: TypeAlias = Callable[[Sequence[Array]], "Computed"]

DTYPES: Final[dict[FeatureType, npt.DTypeLike]] = {
    FeatureType.BOOL: np.bool_,
    FeatureType.INT64: np.int64,
    FeatureType.FLOAT64: np.float64,
    FeatureType.TIMESTAMP: np.dtype("datetime64[us]"),
    FeatureType.STRING: np.object_,
    FeatureType.BYTES: np.object_,
}


@dataclass(frozen=True, slots=True)
class Computed:
    """`values` [num_rows] and where they are defined, a bool array [num_rows]; None is everywhere."""

    values: Array
    is_defined: npt.NDArray[np.bool_] | None = None


def objects(values: Sequence[Any]) -> Array:
    """One object per element; numpy would make lists another dimension."""
    return np.fromiter(values, np.object_, len(values))


def function_of(transform: on_demand.AnyTransform) -> Function:
    """The function of a transform whose declaration is sound.

    Raises:
        ConfigurationError: a user's function that cannot be loaded.
    """
    match transform:
        case on_demand.HashBucket():
            return _hash_bucket(transform)
        case on_demand.Bucket():
            return _bucket(transform)
        case on_demand.Cross():
            return _cross
        case on_demand.Ratio():
            return _ratio
        case on_demand.Difference():
            return _difference
        case on_demand.Log1p():
            return _log1p
        case on_demand.Haversine():
            return _haversine
        case on_demand.HourOfDay():
            hours = ZoneClock(transform.time_zone).hours
            return lambda operands: Computed(hours(operands[0]))
        case on_demand.DayOfWeek():
            weekdays = ZoneClock(transform.time_zone).weekdays
            return lambda operands: Computed(weekdays(operands[0]))
        case on_demand.Custom():
            return _custom(transform)


def _hash_bucket(transform: on_demand.HashBucket) -> Function:
    salt = transform.salt.encode()

    def bucket(value: Any) -> int:
        digest = hashlib.blake2b(_hashed_bytes(value), digest_size=8, salt=salt).digest()
        return int.from_bytes(digest, "little") % transform.buckets

    def compute(operands: Sequence[Array]) -> Computed:
        values = _integers(operands[0]).tolist()
        buckets = {value: bucket(value) for value in set(values)}  # columns repeat their values
        return Computed(np.fromiter((buckets[value] for value in values), np.int64, len(values)))

    return compute


def _hashed_bytes(value: Any) -> bytes:
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
        case _:
            return int(value).to_bytes(8, "little", signed=True)


def _bucket(transform: on_demand.Bucket) -> Function:
    boundaries = np.array(transform.boundaries, np.float64)

    def compute(operands: Sequence[Array]) -> Computed:
        numbers = _floats(operands[0])
        return Computed(np.searchsorted(boundaries, numbers, side="right").astype(np.int64), ~np.isnan(numbers))

    return compute


def _cross(operands: Sequence[Array]) -> Computed:
    rows = zip(*(_integers(operand).tolist() for operand in operands), strict=True)
    return Computed(objects([entity_key(*row) for row in rows]))


def _ratio(operands: Sequence[Array]) -> Computed:
    numerator, denominator = map(_floats, operands)
    with np.errstate(all="ignore"):
        return Computed(numerator / denominator, denominator != 0)


def _difference(operands: Sequence[Array]) -> Computed:
    minuend, subtrahend = operands
    if minuend.dtype.kind == "M":
        return Computed((minuend - subtrahend).astype(np.int64) / 1e6)
    with np.errstate(all="ignore"):
        return Computed(_floats(minuend) - _floats(subtrahend))


def _log1p(operands: Sequence[Array]) -> Computed:
    numbers = _floats(operands[0])
    with np.errstate(all="ignore"):
        return Computed(np.log1p(numbers), ~(numbers <= -1))  # the logarithm of NaN is NaN, not null


def _haversine(operands: Sequence[Array]) -> Computed:
    """Source: R. W. Sinnott, "Virtues of the Haversine", Sky and Telescope 68 (1984), 159."""
    latitude, longitude, to_latitude, to_longitude = (np.radians(_floats(operand)) for operand in operands)
    with np.errstate(all="ignore"):
        across = np.sin((to_latitude - latitude) / 2) ** 2
        along = np.sin((to_longitude - longitude) / 2) ** 2
        chord = across + np.cos(latitude) * np.cos(to_latitude) * along
        km = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(chord, 1)))  # rounding can carry it past 1
    # what is not finite gives NaN; degrees(90) in radians is exactly pi / 2
    is_on_sphere = (np.abs(latitude) <= np.pi / 2) & (np.abs(to_latitude) <= np.pi / 2)
    return Computed(km, is_on_sphere & np.isfinite(km))


def _custom(transform: on_demand.Custom) -> Function:
    function, dtype = load_function(transform.function), np.dtype(DTYPES[transform.returns])

    def compute(operands: Sequence[Array]) -> Computed:
        try:
            result = np.ma.asanyarray(function(*map(_read_only, operands)))
        except Exception as error:  # foreign code may raise anything
            raise ConfigurationError(f"function {transform.function} failed: {error!r}") from error
        values = np.ma.getdata(result)
        is_defined = ~np.ma.getmaskarray(result)
        if values.shape != operands[0].shape:
            raise ConfigurationError(
                f"function {transform.function} gave shape {values.shape}; expected {operands[0].shape}, one per row"
            )
        return Computed(_checked(transform, values, is_defined, dtype), is_defined)

    return compute


def load_function(path: str) -> Callable[..., Any]:
    """The function at `package.module:function`. Raises `ConfigurationError`."""
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"function {path!r} cannot be loaded: {error}; expected package.module:name"
        ) from error
    if not callable(function):
        raise ConfigurationError(f"function {path!r} is {type(function).__name__}, which cannot be called")
    return function  # type: ignore[no-any-return]


def _checked(transform: on_demand.Custom, values: Array, is_defined: Array, dtype: np.dtype[Any]) -> Array:
    """The user's values in the type that was declared; nothing is converted that could change."""
    if dtype.kind != "O":
        if not np.can_cast(values.dtype, dtype, "safe"):
            raise ConfigurationError(
                f"function {transform.function} gave {values.dtype}; declared is {transform.returns} ({dtype})"
            )
        return values.astype(dtype)
    values = objects(values.tolist())
    wrong = [type(v).__name__ for v in values[is_defined] if not isinstance(v, _PYTHON_TYPES[transform.returns])]
    if wrong:
        raise ConfigurationError(f"function {transform.function} gave {wrong[0]}; declared is {transform.returns}")
    return values


_PYTHON_TYPES: Final = {FeatureType.STRING: str, FeatureType.BYTES: bytes}


def _floats(operand: Array) -> Array:
    """Numbers as float64: an int64 beyond 2**53 and a decimal are rounded to the nearest."""
    return operand.astype(np.float64)


def _read_only(operand: Array) -> Array:
    view = operand.view()
    view.flags.writeable = False  # other features read the same column
    return view


def _integers(operand: Array) -> Array:
    """Bools as 0 and 1, instants as microseconds since 1970; all others as they are."""
    return operand.astype(np.int64) if operand.dtype.kind in "bM" else operand

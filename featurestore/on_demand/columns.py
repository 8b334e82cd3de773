"""Columns of values with their states: from one request's values, or from a table, and back to either.

Both become the same arrays, so that one code computes on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import FeatureState
from featurestore.definitions import FeatureType, Field
from featurestore.instants import from_us, to_us
from featurestore.offline.source_schema import arrow_type
from featurestore.on_demand.functions import Array, objects

SEVERITY: Final = (
    FeatureState.PRESENT,
    FeatureState.DEFAULT,
    FeatureState.STALE,
    FeatureState.NULL,
    FeatureState.MISSING,
)
RANK: Final = {state: rank for rank, state in enumerate(SEVERITY)}
_STATES: Final = pa.array([state.value for state in SEVERITY], pa.string())


@dataclass(frozen=True, slots=True)
class StatedColumn:
    """One feature of many rows; all arrays are [num_rows]. Where `has_value` is false, `values` holds anything.

    `severity` is the place of the row's state in `SEVERITY`, the worst last.
    """

    values: Array
    has_value: npt.NDArray[np.bool_]
    severity: npt.NDArray[np.int8]


def worst(columns: Sequence[StatedColumn]) -> npt.NDArray[np.int8]:
    """Row by row the worst severity of several columns."""
    return reduce(np.maximum, [column.severity for column in columns])


def has_values(columns: Sequence[StatedColumn]) -> npt.NDArray[np.bool_]:
    """Where every one of several columns has a value."""
    return reduce(np.logical_and, [column.has_value for column in columns])


def column_of_value(value: Any, state: FeatureState) -> StatedColumn:
    """One row."""
    values = _NOTHING if value is None else _one(value)
    return StatedColumn(values, np.array([value is not None]), np.array([RANK[state]], np.int8))


def column_of_table(values: pa.Array, states: pa.DictionaryArray) -> StatedColumn:
    """A column of a table, its states a dictionary of the words of `FeatureState`."""
    has_value = values.is_valid().to_numpy(zero_copy_only=False)
    ranks = np.array([RANK[FeatureState(word)] for word in states.dictionary.to_pylist()], np.int8)
    return StatedColumn(_array_of(values), has_value, ranks[np.asarray(states.indices)])


def value_of(column: StatedColumn) -> Any:
    """The value of a column of one row; None where it has none."""
    if not column.has_value[0]:
        return None
    value = column.values[0]
    if isinstance(value, np.datetime64):
        return from_us(int(value.astype(np.int64)))
    return value.item() if isinstance(value, np.generic) else value


def state_of(column: StatedColumn) -> FeatureState:
    return SEVERITY[column.severity[0]]


def table_columns(column: StatedColumn, kind: FeatureType) -> tuple[pa.Array, pa.DictionaryArray]:
    """Values as a column of a table, null where there is none, and its states as `column_of_table` reads them."""
    values = column.values.astype(np.int64) if kind is FeatureType.TIMESTAMP else column.values
    target = arrow_type(Field(name="computed", type=kind))
    array = pa.array(values, mask=~column.has_value, type=None if kind is FeatureType.TIMESTAMP else target)
    return array.cast(target), pa.DictionaryArray.from_arrays(column.severity, _STATES)


def type_of(values: Array) -> FeatureType | None:
    """The type of a column of values, at least one; None for lists."""
    kind = values.dtype.kind
    return _OF_KIND[kind] if kind in _OF_KIND else _OF_CLASS.get(type(values[0]))


def _one(value: Any) -> Array:
    match value:
        case bool() | int() | float():
            return np.array([value])
        case datetime():
            return np.array([to_us(value, "timestamp")], "datetime64[us]")
        case _:
            return objects([value])


def _array_of(values: pa.Array) -> Array:
    kind = values.type
    if pa.types.is_timestamp(kind):
        return np.asarray(pc.fill_null(values.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 0)).view(_INSTANT)
    if pa.types.is_boolean(kind):
        return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):  # with nulls in it, integers would become floats
        return np.asarray(pc.fill_null(values, 0))
    return objects(values.to_pylist())


_INSTANT: Final = np.dtype("datetime64[us]")
_NOTHING: Final = np.zeros(1)
_OF_KIND: Final = {
    "b": FeatureType.BOOL,
    "i": FeatureType.INT64,
    "f": FeatureType.FLOAT64,
    "M": FeatureType.TIMESTAMP,
}
_OF_CLASS: Final[dict[type, FeatureType]] = {
    str: FeatureType.STRING,
    bytes: FeatureType.BYTES,
    Decimal: FeatureType.DECIMAL,
}

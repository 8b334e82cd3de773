"""A request's inputs and features as one row of float32, the same for serving and for training.

`encode` serves one request; `encode_table` encodes the history that a model is trained on. Both go through the same
rule per column kind, and a property test holds them equal row by row. Knows nothing of feature states: an absent
value is absent, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from core_engine.contracts import EMPTY
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.predictors.declaration import Column, ColumnKind

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
Cell: TypeAlias = Callable[[Any], float]  # one present value to one number; raises one of _MISFITS for another type

NAN = float("nan")
UNKNOWN = -1.0
_MISFITS = (TypeError, AttributeError, OverflowError)
LARGEST = float(np.finfo(np.float32).max)


class RowEncoder:
    """Encodes rows over `columns`. A source with a dot is a feature reference, any other an input field.

    Absent (missing or None) is NaN, and -1 in a category column. A number that float32 cannot hold is absent. Times
    are read on the clock of their own UTC offset, so that shifting all times by whole weeks changes no column but the
    day of the year.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        if not columns:
            raise ConfigurationError("a row encoder needs at least one column")
        self.columns = tuple(columns)
        self._cells = tuple((c, c.source, "." in c.source, _cell(c), _absent(c)) for c in self.columns)

    @property
    def num_columns(self) -> int:
        return len(self.columns)

    def encode(self, inputs: Mapping[str, Any], features: Mapping[str, Any] = EMPTY) -> npt.NDArray[np.float32]:
        """One row, float32 [num_columns]; about 5 us for 21 columns.

        Raises:
            InvalidRequest: a value has a type that its column cannot hold, or a time is naive.
        """
        row: list[float] = []
        for column, source, is_feature, cell, absent in self._cells:
            value = features.get(source) if is_feature else inputs.get(source)
            if value is None:
                row.append(absent)
                continue
            try:
                row.append(cell(value))
            except _MISFITS:
                raise _refusal(column, value) from None
        return np.array(row, dtype=np.float32)

    def encode_table(
        self, table: pa.Table | Mapping[str, Array], offsets_s: Mapping[str, Array] = EMPTY
    ) -> npt.NDArray[np.float32]:
        """All rows, float32 [num_rows, num_columns]; `table` has one column per source.

        A time column is UTC (datetime64 or Arrow timestamp); `offsets_s[source]` [num_rows] is the UTC offset in
        seconds on whose clock it is read. An object array of aware datetimes needs none.

        Raises:
            ConfigurationError: a source or its offsets are not there.
            InvalidRequest: as `encode`.
        """
        names = list(table.keys() if isinstance(table, Mapping) else table.column_names)
        absent = [c.source for c in self.columns if c.source not in names]
        if absent:
            raise ConfigurationError(f"the table to encode has no column {absent[0]!r}; it has {sorted(names)}")
        return np.stack(
            [_encode_column(c, _to_numpy(c, table[c.source]), offsets_s.get(c.source)) for c in self.columns],
            axis=1,
            dtype=np.float32,
            casting="same_kind",
        )


def _absent(column: Column) -> float:
    return UNKNOWN if column.kind is ColumnKind.CATEGORY else NAN


def _cell(column: Column) -> Cell:
    match column.kind:
        case ColumnKind.NUMERIC:
            return _number
        case ColumnKind.CATEGORY:
            return _category_of(column)
        case ColumnKind.HOUR:
            return _hour
        case ColumnKind.WEEKDAY:
            return _weekday
        case ColumnKind.YEARDAY:
            return _yearday


def _number(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError
    number = float(value)
    return number if -LARGEST <= number <= LARGEST else NAN


def _category_of(column: Column) -> Cell:
    index = {value: float(i) for i, value in enumerate(column.values)}
    if not index or len(index) != len(column.values):
        raise ConfigurationError(f"column {column.name}: the values of a category must be given and distinct")

    def category(value: Any) -> float:
        if type(value) is not str:
            if type(value) is not int:
                raise TypeError
            value = str(value)
        return index.get(value, UNKNOWN)

    return category


def _hour(value: datetime) -> float:
    return _aware(value).hour + value.minute / 60


def _weekday(value: datetime) -> float:
    return float(_aware(value).weekday())


def _yearday(value: datetime) -> float:
    return float(_aware(value).timetuple().tm_yday)


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise TypeError
    return value


_EXPECTED = {
    ColumnKind.NUMERIC: "a number",
    ColumnKind.CATEGORY: "a string or a whole number",
}


def _refusal(column: Column, value: object) -> InvalidRequest:
    expected = _EXPECTED.get(column.kind, "a timestamp with a UTC offset")
    message = f"{column.source} = {value!r}: column {column.name} expects {expected}"
    return InvalidRequest(message, field=column.source, value=value, expected=expected)


def _to_numpy(column: Column, values: Any) -> Array:
    """A NumPy array as it is, or an Arrow column with its nulls as NaN, NaT or None."""
    if isinstance(values, np.ndarray):
        return values
    if column.kind is ColumnKind.CATEGORY:  # by way of objects: whole numbers with a null would become floats
        return np.array(values.to_pylist(), dtype=object)
    return np.asarray(values.to_numpy())


def _encode_column(column: Column, values: Array, offset_s: Array | None) -> npt.NDArray[np.floating[Any]]:
    if values.dtype.kind in "OUS" or column.kind is ColumnKind.CATEGORY:
        return _encode_objects(column, values)
    if column.kind is ColumnKind.NUMERIC:
        if values.dtype.kind not in "biuf":
            raise _refusal(column, values[0] if len(values) else values.dtype)
        numbers = values.astype(np.float64)
        return np.where(np.abs(numbers) <= LARGEST, numbers, NAN)
    if values.dtype.kind != "M":
        raise _refusal(column, values[0] if len(values) else values.dtype)
    if offset_s is None:
        raise ConfigurationError(f"column {column.name} needs the UTC offsets of {column.source} in offsets_s")
    return _encode_times(column.kind, values, offset_s)


def _encode_objects(column: Column, values: Array) -> npt.NDArray[np.float64]:
    """Element by element through the very rule that serves; `tolist` turns NumPy scalars into Python's."""
    cell, absent = _cell(column), _absent(column)
    try:
        return np.array([absent if v is None else cell(v) for v in values.tolist()], dtype=np.float64)
    except _MISFITS:
        raise _refusal(column, next(v for v in values.tolist() if v is not None and not _holds(cell, v))) from None


def _holds(cell: Cell, value: object) -> bool:
    try:
        cell(value)
    except _MISFITS:
        return False
    return True


def _encode_times(kind: ColumnKind, utc: Array, offset_s: Array) -> npt.NDArray[np.float64]:
    """Clock and calendar of `utc` moved by its offset, in whole-number arithmetic on minutes and days."""
    local = utc.astype("datetime64[us]") + np.asarray(offset_s).astype("timedelta64[s]")
    day = local.astype("datetime64[D]")
    match kind:
        case ColumnKind.HOUR:
            minutes = (local - day).astype("timedelta64[m]").astype(np.int64)
            number = minutes // 60 + minutes % 60 / 60
        case ColumnKind.WEEKDAY:
            number = (day.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
        case _:
            number = (day - day.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) + 1
    return np.where(np.isnat(local), NAN, number)

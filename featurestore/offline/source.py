"""A view's history from Parquet, checked against its declaration: keys, both clocks in microseconds, typed columns.

The one place where sources are read, where their times may be shifted, and where a file that does not fit its view is
refused. Rows keep the file's order: a row's position is its offset, which settles rows equal in both clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureView, Field
from featurestore.instants import MICROSECOND
from featurestore.offline.source_schema import arrow_type, check_columns, open_source, reading, where

NO_SHIFT: Final = timedelta()


@dataclass(frozen=True, slots=True)
class Source:
    """History rows. All arrays have one length; `columns` lacks the fields that the files leave to their defaults."""

    keys: pa.Array  # string
    event_us: pa.Array  # int64
    created_us: pa.Array  # int64
    columns: Mapping[str, pa.Array]  # `source_schema.arrow_type` of their fields

    def __len__(self) -> int:
        return len(self.keys)


def read_source(view: FeatureView, names: Iterable[str], shift: timedelta = NO_SHIFT, key: str | None = None) -> Source:
    """The history of `view` with the features `names`, of one entity if `key` is given.

    `shift` is added to event and created times; the values of timestamp features stay as they are.

    Raises:
        ConfigurationError: no such file, or a file that does not fit: a column lacking that has no default, a naive or
            nanosecond time, a null key or time, a type that would have to be rounded, a null in a list, a NaN that is
            refused. It names view, column, and row and entity where it is about one.
        StoreUnavailable: the file cannot be read now.
    """
    dataset = open_source(view, key)
    source = view.source
    with reading(view):
        found = check_columns(view, dataset, names)
        required = (source.key_column, source.event_time_column, source.created_time_column)
        table = dataset.read(columns=list(dict.fromkeys((*required, *found))))
    keys = _plain(_column(view, table, source.key_column)).cast(pa.string())
    shift_us = shift // MICROSECOND
    return Source(
        keys,
        _instants(view, table, source.event_time_column, shift_us),
        _instants(view, table, source.created_time_column, shift_us),
        {name: _values(view, view.field(name), table, keys) for name in found},
    )


def _column(view: FeatureView, table: pa.Table, name: str) -> pa.Array:
    """A column without which its row cannot be placed."""
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise ConfigurationError(
            f"{where(view)}: {column.null_count} rows have no {name}, the first is row {_first(column.is_null())};"
            " drop or repair them"
        )
    return column


def _instants(view: FeatureView, table: pa.Table, name: str, shift_us: int) -> pa.Array:
    us = _column(view, table, name).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return pc.add_checked(us, pa.scalar(shift_us, pa.int64()))


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _values(view: FeatureView, field: Field, table: pa.Table, keys: pa.Array) -> pa.Array:
    column = _plain(table.column(field.name).combine_chunks())
    try:
        column = column.cast(arrow_type(field))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"{where(view)}: column {field.name} is {column.type}, which is no exact {field.type}: {error}; correct"
            " the source, or declare a new version of the view"
        ) from None
    values, rows = (pc.list_flatten(column), pc.list_parent_indices(column)) if field.is_list else (column, None)
    if field.is_list and values.null_count:
        _refuse(view, field, keys, _row(values.is_null(), rows), "has a null in its list; leave it out")
    if field.refuse_nan and pc.any(pc.is_nan(values)).as_py():
        fault = "is NaN, which the field refuses; write null, or correct the source"
        _refuse(view, field, keys, _row(pc.fill_null(pc.is_nan(values), False), rows), fault)
    return column


def _row(is_wrong: pa.Array, rows: pa.Array | None) -> int:
    """The row of the first wrong value; `rows` are those of a list's elements."""
    first = _first(is_wrong)
    return first if rows is None else int(rows[first].as_py())


def _first(is_wrong: pa.Array) -> int:
    return int(pc.index(is_wrong, True).as_py())


def _refuse(view: FeatureView, field: Field, keys: pa.Array, row: int, fault: str) -> NoReturn:
    raise ConfigurationError(f"{where(view)}: column {field.name} of row {row} (entity {keys[row].as_py()!r}) {fault}")

"""A view's history from Parquet, checked against its declaration: keys, both clocks in microseconds, typed columns.

The one place where sources are read, where their times may be shifted, and where a file that does not fit its view is
refused. Rows keep the file's order: a row's position is its offset, which settles rows equal in both clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from core_engine.errors import ConfigurationError, StoreUnavailable
from featurestore.definitions import FeatureType, FeatureView
from featurestore.instants import MICROSECOND

NO_SHIFT: Final = timedelta()

ARROW_TYPES: Final = {
    FeatureType.BOOL: pa.bool_(),
    FeatureType.INT64: pa.int64(),
    FeatureType.FLOAT64: pa.float64(),
    FeatureType.STRING: pa.string(),
    FeatureType.BYTES: pa.binary(),
    FeatureType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """History rows. All arrays have one length; `columns` lacks the fields that the file leaves out."""

    keys: pa.Array  # string
    event_us: pa.Array  # int64
    created_us: pa.Array  # int64
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.keys)


def read_source(view: FeatureView, names: Iterable[str], shift: timedelta = NO_SHIFT, key: str | None = None) -> Source:
    """The history of `view` with the features `names`, of one entity if `key` is given.

    `shift` is added to event and created times; the values of timestamp features stay as they are.

    Raises:
        ConfigurationError: no such file, or a file that does not fit: a column lacking, a naive or nanosecond time, a
            null key or time, a type that would have to be rounded.
        StoreUnavailable: the file cannot be read now.
    """
    table = _read(view, names, key)
    shift_us = shift // MICROSECOND
    return Source(
        _keys(view, table),
        _instants(view, table, view.source.event_time_column, shift_us),
        _instants(view, table, view.source.created_time_column, shift_us),
        {name: _values(view, table, name) for name in names if name in table.column_names},
    )


def _read(view: FeatureView, names: Iterable[str], key: str | None) -> pa.Table:
    source = view.source
    required = (source.key_column, source.event_time_column, source.created_time_column)
    try:
        dataset = pq.ParquetDataset(source.path, filters=None if key is None else [(source.key_column, "=", key)])
        lacking = [name for name in required if name not in dataset.schema.names]
        if lacking:
            raise ConfigurationError(f"{_where(view)} lacks {lacking}; it has {dataset.schema.names}")
        wanted = dict.fromkeys((*required, *(name for name in names if name in dataset.schema.names)))
        return dataset.read(columns=list(wanted))
    except FileNotFoundError:
        raise ConfigurationError(f"{_where(view)} does not exist; build it, or correct the view's source") from None
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{_where(view)} is not Parquet: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"{_where(view)} cannot be read: {error}") from error


def _keys(view: FeatureView, table: pa.Table) -> pa.Array:
    column = _column(view, table, view.source.key_column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise ConfigurationError(
            f"{_where(view)}: column {view.source.key_column} is {column.type}; expected string, as"
            " contracts.entity_key writes it"
        )
    return column.cast(pa.string())


def _instants(view: FeatureView, table: pa.Table, name: str, shift_us: int) -> pa.Array:
    us = _to_utc(view, name, _column(view, table, name)).cast(pa.int64())
    return pc.add_checked(us, pa.scalar(shift_us, pa.int64()))


def _column(view: FeatureView, table: pa.Table, name: str) -> pa.Array:
    """A column without which its row cannot be placed."""
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise ConfigurationError(f"{_where(view)}: {column.null_count} rows have no {name}; drop or repair them")
    return column


def _to_utc(view: FeatureView, name: str, column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type) or column.type.tz is None or column.type.unit == "ns":
        raise ConfigurationError(
            f"{_where(view)}: column {name} is {column.type}; expected a timestamp with a timezone in microseconds or"
            " coarser, such as timestamp[us, tz=UTC]"
        )
    return column.cast(pa.timestamp("us", tz="UTC"))


def _values(view: FeatureView, table: pa.Table, name: str) -> pa.Array:
    feature_type = view.field(name).type
    column = table.column(name).combine_chunks()
    if feature_type is FeatureType.TIMESTAMP:
        return _to_utc(view, name, column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if not _FITS[feature_type](column.type):
            raise pa.ArrowInvalid(f"{column.type} is another kind of type")
        return column.cast(ARROW_TYPES[feature_type])
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{_where(view)}: column {name} is declared {feature_type}: {error}") from None


_FITS: Final = {
    FeatureType.BOOL: pa.types.is_boolean,
    FeatureType.INT64: pa.types.is_integer,
    FeatureType.FLOAT64: pa.types.is_floating,
    FeatureType.STRING: lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    FeatureType.BYTES: lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
}


def _where(view: FeatureView) -> str:
    return f"feature view {view.name}: source {view.source.path!r}"

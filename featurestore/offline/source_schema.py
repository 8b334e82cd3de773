"""Whether the files of a source have the columns that its view declares, by name and type, before a row is read.

Several files are one history only where each of them fits: pyarrow would take the columns of the first, fill in nulls
where a later file lacks one, and convert where it has another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from core_engine.errors import ConfigurationError, StoreUnavailable
from featurestore.definitions import DECIMAL_DIGITS, FeatureType, FeatureView, Field

_SCALARS: Final = {
    FeatureType.BOOL: pa.bool_(),
    FeatureType.INT64: pa.int64(),
    FeatureType.FLOAT64: pa.float64(),
    FeatureType.STRING: pa.string(),
    FeatureType.BYTES: pa.binary(),
    FeatureType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
INSTANT: Final = Field(name="instant", type=FeatureType.TIMESTAMP)
KEY: Final = Field(name="key", type=FeatureType.STRING)


@dataclass(frozen=True, slots=True)
class SourceDrift:
    """How the files differ from the declaration without being wrong: `defaulted` fields that no file has, and columns
    that are `undeclared`."""

    defaulted: tuple[str, ...]
    undeclared: tuple[str, ...]


def arrow_type(field: Field) -> pa.DataType:
    """The type of the field's values in Arrow; columns of other widths or units are read as this one."""
    is_decimal = field.type is FeatureType.DECIMAL
    scalar = pa.decimal128(DECIMAL_DIGITS, field.decimal_places) if is_decimal else _SCALARS[field.type]
    return pa.list_(scalar) if field.is_list else scalar


def source_drift(view: FeatureView) -> SourceDrift:
    """What of the source should be looked at. Raises as `read_source` does where it does not fit."""
    dataset = open_source(view)
    names = check_columns(view, dataset, [field.name for field in view.schema])
    declared = {*_placing(view), *names}
    return SourceDrift(
        tuple(field.name for field in view.schema if field.name not in declared),
        tuple(name for name in _all_names(dataset) if name not in declared),
    )


def open_source(view: FeatureView, key: str | None = None) -> pq.ParquetDataset:
    """The files of the source, of one entity's rows if `key` is given.

    Raises:
        ConfigurationError: no such file, or no Parquet.
        StoreUnavailable: it cannot be read now.
    """
    filters = None if key is None else [(view.source.key_column, "=", key)]
    with reading(view):
        return pq.ParquetDataset(view.source.path, filters=filters)


@contextmanager
def reading(view: FeatureView) -> Iterator[None]:
    """Turns what Arrow raises while it reads a source into this store's errors, naming view and path."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigurationError(f"{where(view)} does not exist; build it, or correct the view's source") from None
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{where(view)} is not Parquet: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"{where(view)} cannot be read: {error}") from error


def check_columns(view: FeatureView, dataset: pq.ParquetDataset, names: Iterable[str]) -> list[str]:
    """Those of `names` that the source has; the others are served by their defaults.

    Raises:
        ConfigurationError: a file lacks a column, has it in another type, or has one too many; names view, file and
            column.
    """
    for name, field in zip(_placing(view), (KEY, INSTANT, INSTANT), strict=True):
        _check_column(view, dataset, name, field, may_lack=False)
    fields = [view.field(name) for name in dict.fromkeys(names)]
    found = [f.name for f in fields if _check_column(view, dataset, f.name, f, may_lack=f.default is not None)]
    if view.source.refuse_extra:
        declared = {*_placing(view), *(field.name for field in view.schema)}
        extra = [name for name in _all_names(dataset) if name not in declared]
        if extra:
            raise ConfigurationError(
                f"{where(view)} has {extra}, which the view does not declare; drop them, or declare a new version"
            )
    return found


def where(view: FeatureView) -> str:
    return f"feature view {view.name}: source {view.source.path!r}"


def _placing(view: FeatureView) -> tuple[str, str, str]:
    """The columns without which a row cannot be placed."""
    return view.source.key_column, view.source.event_time_column, view.source.created_time_column


def _all_names(dataset: pq.ParquetDataset) -> list[str]:
    """The columns of all files, those that are in the names of their folders included."""
    names = [*dataset.schema.names, *(name for f in dataset.fragments for name in f.physical_schema.names)]
    return list(dict.fromkeys(names))


def _check_column(view: FeatureView, dataset: pq.ParquetDataset, name: str, field: Field, *, may_lack: bool) -> bool:
    """Whether the source has the column, in every file or in the names of their folders."""
    holding = [f for f in dataset.fragments if name in f.physical_schema.names]
    lacking = [f.path for f in dataset.fragments if name not in f.physical_schema.names]
    types = {f.path: f.physical_schema.field(name).type for f in holding}
    if not holding and name in dataset.schema.names:
        types = {view.source.path: dataset.schema.field(name).type}
    elif lacking and (holding or not may_lack):
        in_file = f" in {lacking[0]!r}" if holding else ""
        raise ConfigurationError(
            f"{where(view)} lacks column {name!r}{in_file}; it has {_all_names(dataset)}; add the column, or declare a"
            " default in a new version of the view"
        )
    for path, kind in types.items():
        _check_type(view, path, name, field, kind)
    return bool(types)


def _check_type(view: FeatureView, path: str, name: str, field: Field, kind: pa.DataType) -> None:
    if not fits(field, kind):
        in_file = "" if path == view.source.path else f" in {path!r}"
        raise ConfigurationError(
            f"{where(view)}: column {name} is {kind}{in_file}; expected {'a list of ' if field.is_list else ''}"
            f"{_EXPECTED.get(field.type, field.type)}, as the view declares it; correct the source, or declare a new"
            " version of the view"
        )


def fits(field: Field, kind: pa.DataType) -> bool:
    """Whether a column of type `kind` is of the field's kind; it may still hold a value that is not exactly one."""
    values = kind.value_type if field.is_list and _is_list(kind) else kind
    if pa.types.is_dictionary(values):
        values = values.value_type
    return _is_list(kind) is field.is_list and bool(_FITS[field.type](values))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_instant(kind: pa.DataType) -> bool:
    """Nanoseconds would have to be rounded; a naive time could be any instant."""
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit != "ns")


_EXPECTED: Final = {
    FeatureType.TIMESTAMP: "timestamp with a timezone in microseconds or coarser, such as timestamp[us, tz=UTC]",
}
_FITS: Final = {
    FeatureType.BOOL: pa.types.is_boolean,
    FeatureType.INT64: pa.types.is_integer,
    FeatureType.FLOAT64: pa.types.is_floating,
    FeatureType.STRING: lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    FeatureType.BYTES: lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
    FeatureType.TIMESTAMP: _is_instant,
    FeatureType.DECIMAL: pa.types.is_decimal,
}

"""The caller's side of a point-in-time join: of each row an instant and the keys of its entities, checked by column.

A column of keys is taken as it is; keys may also be made here from the columns of their parts, as
`contracts.entity_key` makes them from the inputs of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.errors import InvalidRequest
from featurestore.catalog import CompiledView

# of each entity the column of its keys, or the columns of its key's parts in the order of its join keys
EntityColumns: TypeAlias = Mapping[str, str | Sequence[str]]

ESCAPES: Final = (("%", "%25"), ("-", "%2D"))  # as `contracts.entity_key`


def spine_instants(spine: pa.Table, name: str) -> pa.Array:
    """The column `name` in microseconds since 1970, int64 without nulls. Raises `InvalidRequest`."""
    column = _column(spine, name)
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        _refuse(name, str(kind), "a timestamp with a timezone in every row")
    if column.null_count:
        _refuse(name, f"{column.null_count} nulls", "a timestamp with a timezone in every row")
    # nanoseconds are floored: a row is known from a whole microsecond on, so that no row becomes visible too early
    floored = pc.floor_temporal(column, unit="microsecond") if kind.unit == "ns" else column
    return floored.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def spine_keys(spine: pa.Table, compiled: CompiledView, entity_columns: EntityColumns) -> pa.Array:
    """The keys by which the view is read, string; null where a part of the key is. Raises `InvalidRequest`."""
    columns = entity_columns.get(compiled.entity)
    if not columns:
        raise InvalidRequest(
            f"entity_columns lacks entity {compiled.entity!r} of feature view {compiled.view.name};"
            f" it has {sorted(entity_columns)}",
            field=compiled.entity,
            expected="the spine's column of its keys, or the columns of their parts",
        )
    if isinstance(columns, str):
        return _text(columns, _column(spine, columns), "strings, as contracts.entity_key writes them")
    return pc.binary_join_element_wise(*(_key_part(spine, name) for name in columns), "-")


def _key_part(spine: pa.Table, name: str) -> pa.Array:
    column = _column(spine, name)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    text = _text(name, column, "strings or integers, as the parts of a key are")
    for character, escaped in ESCAPES:
        text = pc.replace_substring(text, character, escaped)
    return text


def _text(name: str, column: pa.Array, expected: str) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_null(column.type)):
        _refuse(name, str(column.type), expected)
    return column.cast(pa.string())


def _column(spine: pa.Table, name: str) -> pa.Array:
    num_columns = spine.column_names.count(name)
    if num_columns != 1:
        found = f"{num_columns} columns {name!r}" if num_columns else f"no column {name!r}"
        expected = "a column's name"
        raise InvalidRequest(f"the spine has {found}; it has {spine.column_names}", field=name, expected=expected)
    return spine.column(name).combine_chunks()


def _refuse(name: str, found: str, expected: str) -> NoReturn:
    raise InvalidRequest(f"spine column {name} has {found}: expected {expected}", field=name, expected=expected)

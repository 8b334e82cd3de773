"""The offline store: feature values as they were known at each row's own instant, for training and for checks.

Leak-free on both clocks: at t only rows with event time <= t and created time <= t exist, and the newest of them by
(event time, created time, position in the file) is served, under the view's TTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import FeatureState
from core_engine.errors import InvalidRequest
from featurestore.catalog import CompiledView, Feature, ViewCatalog
from featurestore.codec import ABSENT
from featurestore.definitions import FeatureView
from featurestore.source import ARROW_TYPES, NO_SHIFT, Source, read_source
from featurestore.timeline import known_positions, newest_positions

STATE_SUFFIX = "__state"  # the state of `view.feature` is in column `view.feature__state`


@dataclass(frozen=True, slots=True)
class KnownRow:
    """One entity's newest known row; `values` in schema order, `ABSENT` where the source has no such column."""

    event_us: int
    values: list[Any]


class OfflineStore:
    """History in Parquet. `shift` is added to every event and created time (the example's shifted clock)."""

    def __init__(self, views: Iterable[FeatureView], shift: timedelta = NO_SHIFT) -> None:
        self.catalog = ViewCatalog(views)
        self._shift = shift

    def as_of_join(
        self, spine: pa.Table, refs: Sequence[str], entity_columns: Mapping[str, str], time_column: str
    ) -> pa.Table:
        """`spine` with two more columns per reference: its value, and its state in `<ref>__state`.

        One output row per input row, in the input's order; the spine's own columns are passed through untouched.
        `entity_columns` maps each entity to the spine's column of its keys (`contracts.entity_key`; null is never
        found). States are the words of `FeatureState`: a `stale` value is given all the same, `missing` and `null` are
        null. Nothing is cached: each call reads the sources again.

        Raises:
            ConfigurationError: a view or feature not declared, or a source that does not fit its view.
            InvalidRequest: a column of the spine lacking, naive, null in its time, or not of strings.
        """
        at_us = _spine_instants(spine, time_column)
        joined: dict[str, tuple[pa.Array, pa.Array]] = {}
        for compiled, features in self.catalog.by_view(refs):
            keys = _spine_keys(spine, compiled.view, entity_columns)
            joined |= self._join_view(compiled, features, keys, at_us)
        for ref in dict.fromkeys(refs):
            values, states = joined[ref]
            spine = spine.append_column(ref, values).append_column(ref + STATE_SUFFIX, states)
        return spine

    def known_row(self, name: str, key: str, as_of_us: int) -> KnownRow | None:
        """The newest row of one entity known at `as_of_us`, whatever its age; None where none was."""
        view = self.catalog.view(name).view
        names = [field.name for field in view.schema]
        source = read_source(view, names, self._shift, key)
        positions = newest_positions(source, as_of_us)
        if not len(positions):
            return None
        at = int(positions[0])
        values = [source.columns[name][at].as_py() if name in source.columns else ABSENT for name in names]
        return KnownRow(source.event_us[at].as_py(), values)

    def _join_view(
        self, compiled: CompiledView, features: Sequence[Feature], keys: pa.Array, at_us: pa.Array
    ) -> dict[str, tuple[pa.Array, pa.Array]]:
        source = read_source(compiled.view, [feature.field.name for feature in features], self._shift)
        found = known_positions(source, keys, at_us)
        positions = pa.array(found, mask=found < 0)  # a null position takes a null value
        age_us = pc.subtract(at_us, source.event_us.take(positions))
        is_stale = pc.fill_null(pc.greater(age_us, compiled.ttl_us), False)
        return {feature.ref: _served(source, feature, positions, is_stale) for feature in features}


def _served(source: Source, feature: Feature, positions: pa.Array, is_stale: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Values and states of one feature, row by row; the same judgement as `states.judge`."""
    column = source.columns.get(feature.field.name)
    is_found = positions.is_valid()
    if column is None:
        default = feature.compiled.defaults[feature.position]
        filler = pa.scalar(default, ARROW_TYPES[feature.field.type])
        values = pc.if_else(is_found, filler, pa.scalar(None, filler.type))
        fresh = FeatureState.DEFAULT
    else:
        values = column.take(positions)
        fresh = FeatureState.PRESENT
    states = pc.if_else(values.is_valid(), fresh.value, FeatureState.NULL.value)
    states = pc.if_else(is_stale, FeatureState.STALE.value, states)
    return values, pc.if_else(is_found, states, FeatureState.MISSING.value)


def _spine_instants(spine: pa.Table, name: str) -> pa.Array:
    column = _spine_column(spine, name)
    expected = "a timestamp with a timezone in every row"
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz is None or column.null_count:
        found = f"{column.null_count} nulls" if column.null_count else str(kind)
        raise InvalidRequest(f"spine column {name} has {found}: expected {expected}", field=name, expected=expected)
    # nanoseconds are floored: a row is known from a whole microsecond on, so that no row becomes visible too early
    floored = pc.floor_temporal(column, unit="microsecond") if kind.unit == "ns" else column
    return floored.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _spine_keys(spine: pa.Table, view: FeatureView, entity_columns: Mapping[str, str]) -> pa.Array:
    if view.entity not in entity_columns:
        raise InvalidRequest(
            f"entity_columns lacks entity {view.entity!r} of feature view {view.name}; it has {sorted(entity_columns)}",
            field=view.entity,
            expected="the spine's column of its keys",
        )
    name = entity_columns[view.entity]
    column = _spine_column(spine, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_null(column.type)):
        expected = "strings, as contracts.entity_key writes them"
        raise InvalidRequest(
            f"spine column {name} is {column.type}: expected {expected}", field=name, expected=expected
        )
    return column.cast(pa.string())


def _spine_column(spine: pa.Table, name: str) -> pa.Array:
    if name not in spine.column_names:
        raise InvalidRequest(
            f"the spine has no column {name!r}; it has {spine.column_names}", field=name, expected="a column's name"
        )
    return spine.column(name).combine_chunks()

"""The offline store: feature values as they were known at each row's own instant, for training and for checks.

Leak-free on both clocks: at t only rows with event time <= t and created time <= t exist, and the newest of them by
(event time, created time, position in the file) is served, under the view's TTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import FeatureState
from core_engine.errors import InvalidRequest
from featurestore.catalog import CompiledView, Feature, ViewCatalog
from featurestore.codec import ABSENT
from featurestore.definitions import FeatureView
from featurestore.offline.source import NO_SHIFT, Source, read_source
from featurestore.offline.source_schema import arrow_type
from featurestore.offline.spine import EntityColumns, spine_instants, spine_keys
from featurestore.offline.timeline import known_positions, newest_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATE_SUFFIX: Final = "__state"  # the state of `view.feature` is in column `view.feature__state`
STATES: Final = (
    FeatureState.PRESENT,
    FeatureState.DEFAULT,
    FeatureState.NULL,
    FeatureState.MISSING,
    FeatureState.STALE,
)
PRESENT, DEFAULT, NULL, MISSING, STALE = range(len(STATES))


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
        self, spine: pa.Table, refs: Sequence[str], entity_columns: EntityColumns, time_column: str
    ) -> pa.Table:
        """`spine` with two more columns per reference: its value, and its state in `<ref>__state`.

        One output row per input row, in the input's order; the spine's own columns are passed through untouched.
        `entity_columns` maps each entity to the spine's column of its keys (`contracts.entity_key`; null is never
        found), or to the columns of their parts, strings or integers. A view is joined once more, by other columns, by
        references to it through another entity (`view@entity.feature`). States are the words of `FeatureState`, one
        byte each in a dictionary: a `stale` value is given all the same, `missing` and `null` are null. Nothing is
        cached: each call reads the sources again.

        Raises:
            ConfigurationError: a view or feature not declared, or a source that does not fit its view.
            InvalidRequest: a column of the spine lacking, naive, null in its time, not of keys, or named as a result.
        """
        at_us = spine_instants(spine, time_column)
        joined: dict[str, tuple[pa.Array, pa.Array]] = {}
        for compiled, features in self.catalog.by_view(refs):
            keys = spine_keys(spine, compiled, entity_columns)
            joined |= self._join_view(compiled, features, keys, at_us)
        for ref in dict.fromkeys(refs):
            for name, column in zip((ref, ref + STATE_SUFFIX), joined[ref], strict=True):
                spine = with_column(spine, name, column)
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
        states = np.full(len(found), PRESENT, np.int8)
        states[_mask(pc.fill_null(pc.greater(age_us, compiled.ttl_us), False))] = STALE
        states[found < 0] = MISSING
        return {feature.ref: _served(source, feature, positions, states) for feature in features}


def _served(
    source: Source, feature: Feature, positions: pa.Array, states: NDArray[np.int8]
) -> tuple[pa.Array, pa.Array]:
    """Values and states of one feature, from the states of its rows as `PRESENT`; the judgement of `states.judge`."""
    column = source.columns.get(feature.field.name)
    fresh = PRESENT
    if column is None:
        filler = pa.scalar(feature.compiled.defaults[feature.position], arrow_type(feature.field))
        values = pc.if_else(positions.is_valid(), filler, pa.scalar(None, filler.type))
        fresh = DEFAULT
    else:
        values = column.take(positions)
    judged = np.where(_mask(values.is_null()), np.int8(NULL), np.int8(fresh))
    judged = np.where(states == PRESENT, judged, states)
    return values, pa.DictionaryArray.from_arrays(judged, pa.array(STATES, pa.string()))


def _mask(column: pa.BooleanArray) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def with_column(spine: pa.Table, name: str, column: pa.Array) -> pa.Table:
    if name in spine.column_names:
        expected = "a spine without it, as a result has this name"
        raise InvalidRequest(f"the spine has a column {name!r}: expected {expected}", field=name, expected=expected)
    return spine.append_column(name, column)

"""What history knew of served rows, each at its own instant: one point-in-time join for all rows of a view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import FeatureState
from featurestore.consistency.comparison import Known
from featurestore.consistency.served_rows import ServedComputed, ServedView
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.instants import MICROSECOND
from featurestore.offline.source_schema import arrow_type
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
from featurestore.on_demand.declaration import OnDemandView
from featurestore.on_demand.join import on_demand_join
from featurestore.on_demand.plan import OnDemandPlan

AT: Final = "at"
STATES: Final = {str(state): state for state in FeatureState}


class StoredServed(NamedTuple):
    """One stored view of one served row."""

    at_us: int
    row: ServedView


class ComputedServed(NamedTuple):
    """One on-demand view of one served row."""

    at_us: int
    row: ServedComputed


def stored_values(view: FeatureView, group: Sequence[StoredServed], shift: timedelta) -> Iterator[Iterator[Known]]:
    """For each feature of the group, which all its rows have, what was known of each row's entity."""
    keys = pa.array([served.row.key for served in group], pa.string())
    clocks = (view.source.event_time_column, view.source.created_time_column)
    features = group[0].row.features
    refs = [f"{view.name}.{name}" for name in dict.fromkeys((*features, *clocks))]
    store = OfflineStore([_with_clocks(view)], shift)
    joined = store.as_of_join(pa.table({AT: _instants(group), "key": keys}), refs, {view.entity: "key"}, AT)
    event_us, created_us = (_shifted_us(joined[f"{view.name}.{name}"], shift) for name in clocks)
    known_us = [_later(*instants) for instants in zip(event_us, created_us, strict=True)]
    for name in features:
        yield map(Known, *_stated(joined, f"{view.name}.{name}"), event_us, known_us)


def computed_values(
    views: Sequence[FeatureView],
    on_demand_views: Sequence[OnDemandView],
    group: Sequence[ComputedServed],
    shift: timedelta,
) -> Iterator[Iterator[Known]]:
    """As `stored_values`, computed from what was known of each row's entities and the request's inputs."""
    first = group[0].row
    columns = {AT: _instants(group)}
    for entity in first.keys:
        columns[f"key of {entity}"] = pa.array([served.row.keys[entity] for served in group], pa.string())
    types = OnDemandPlan(on_demand_views).inputs
    for name in first.inputs:
        kind = arrow_type(Field(name=name, type=types[name]))
        columns[f"input {name}"] = pa.array([served.row.inputs[name] for served in group], kind)
    refs = [f"{first.name}.{name}" for name in first.features]
    joined = on_demand_join(
        OfflineStore(views, shift),
        on_demand_views,
        pa.table(columns),
        refs,
        {entity: f"key of {entity}" for entity in first.keys},
        AT,
        {name: f"input {name}" for name in first.inputs},
    )
    for ref in refs:
        values, states = _stated(joined, ref)
        yield (Known(value, state, None) for value, state in zip(values, states, strict=True))


def _with_clocks(view: FeatureView) -> FeatureView:
    """The view with both clocks of its history as features. A join moves no values, so they are not shifted."""
    held = {field.name for field in view.schema}
    clocks = dict.fromkeys((view.source.event_time_column, view.source.created_time_column))
    fields = (Field(name=name, type=FeatureType.TIMESTAMP) for name in clocks if name not in held)
    return msgspec.structs.replace(view, schema=(*view.schema, *fields), window=None)


def _instants(group: Sequence[StoredServed] | Sequence[ComputedServed]) -> pa.Array:
    return pa.array([served.at_us for served in group], pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _stated(joined: pa.Table, ref: str) -> tuple[list[object], list[FeatureState]]:
    return joined[ref].to_pylist(), [STATES[word] for word in joined[ref + STATE_SUFFIX].to_pylist()]


def _shifted_us(column: pa.ChunkedArray, shift: timedelta) -> list[int | None]:
    shifted = pc.add(column.cast(pa.int64()), pa.scalar(shift // MICROSECOND, pa.int64()))
    instants: list[int | None] = shifted.to_pylist()
    return instants


def _later(event_us: int | None, created_us: int | None) -> int | None:
    return None if event_us is None or created_us is None else max(event_us, created_us)

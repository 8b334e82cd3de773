"""The events of history, from which a backfill makes tiles: read, checked, and taken as the stream takes them."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureView
from featurestore.offline.source_schema import INSTANT, fits, open_source, reading, where
from featurestore.windows.plan import LARGEST, WindowPlan
from featurestore.windows.sketches import text_of
from featurestore.windows.tile import MILLION, Measure

COORDINATES: Final = ("source", "offset")  # columns, where they are known; else the row is the event's offset


def read_events(plan: WindowPlan) -> pa.Table:
    """One row per event: `key`, `event_us`, `created_us`, `source`, `offset`, and of the i-th measure `m<i>`, whole
    millionths or a text, as `WindowPlan.amounts`.

    Raises:
        ConfigurationError: no events declared, no such file, a column lacking or of another type, a value that the
            stream would refuse; names view, column and row.
        StoreUnavailable: the file cannot be read now.
    """
    if plan.window.events is None:
        raise ConfigurationError(
            f"feature view {plan.view.name}: its window names no `events` to make tiles from; declare their Parquet"
        )
    return _Reading(_event_view(plan), plan).table()


def _event_view(plan: WindowPlan) -> FeatureView:
    """The view with its events for a source, as the errors of a source name it."""
    assert plan.window.events is not None
    return FeatureView(
        name=plan.view.name, version=plan.view.version, entity=plan.view.entity, schema=plan.view.schema,
        source=plan.window.events, ttl_s=plan.view.ttl_s, owner=plan.view.owner,
    )  # fmt: skip


class _Reading:
    def __init__(self, view: FeatureView, plan: WindowPlan) -> None:
        self._view, self._plan = view, plan
        dataset = open_source(view)
        source = view.source
        self._times = {"event_us": source.event_time_column, "created_us": source.created_time_column}
        names = [*plan.window.key, *(measure.of for measure in plan.measures), *self._times.values()]
        lacking = [name for name in dict.fromkeys(names) if name not in dataset.schema.names]
        if lacking:
            raise ConfigurationError(
                f"{where(view)} lacks {lacking}, which its window takes; it has {dataset.schema.names}"
            )
        known = [name for name in COORDINATES if name in dataset.schema.names]
        with reading(view):
            self._rows = dataset.read(columns=list(dict.fromkeys((*names, *known))))

    def table(self) -> pa.Table:
        columns = {"key": self._key()}
        columns |= {name: self._instants(column) for name, column in self._times.items()}
        columns |= self._coordinates()
        columns |= {f"m{i}": self._measured(measure) for i, measure in enumerate(self._plan.measures)}
        return pa.table(columns)

    def _key(self) -> pa.Array:
        parts = []
        for name in self._plan.window.key:
            column = self._column(
                name, "a string or an integer", pa.types.is_string, pa.types.is_large_string, pa.types.is_integer
            )
            text = column.cast(pa.string())
            self._check(name, pc.equal(text, ""), f"is empty: it is part of the key of entity {self._view.entity}")
            parts.append(pc.replace_substring(pc.replace_substring(text, "%", "%25"), "-", "%2D"))  # `entity_key`
        return pc.binary_join_element_wise(*parts, "-")

    def _instants(self, name: str) -> pa.Array:
        column = self._column(
            name, "a timestamp with a timezone in microseconds or coarser", lambda kind: fits(INSTANT, kind)
        )
        return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())

    def _coordinates(self) -> dict[str, pa.Array]:
        if not set(COORDINATES) <= set(self._rows.column_names):
            return {"source": pa.array([""] * len(self._rows)), "offset": pa.array(np.arange(len(self._rows)))}
        source = self._column("source", "a string", pa.types.is_string, pa.types.is_large_string)
        offset = self._column("offset", "an integer", pa.types.is_integer)
        return {"source": source.cast(pa.string()), "offset": offset.cast(pa.int64())}

    def _measured(self, measure: Measure) -> pa.Array:
        texts = (pa.types.is_string, pa.types.is_large_string) if measure.is_text else ()
        expected = f"{'a string or ' if texts else ''}an integer or a float"
        column = self._column(measure.of, expected, *texts, pa.types.is_integer, pa.types.is_floating)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            return column.cast(pa.string())
        values = column.to_numpy(zero_copy_only=False)
        within = np.abs(values.astype(np.float64)) <= LARGEST  # NaN is not
        self._check(measure.of, pa.array(~within), f"is no number between -{LARGEST:g} and {LARGEST:g}")
        if measure.is_text:
            return pa.array([text_of(value) for value in column.to_pylist()], pa.string())
        if measure.at_least is not None:
            return pa.array(np.where(values >= measure.at_least, MILLION, 0))
        if pa.types.is_integer(column.type):
            return pa.array(values.astype(np.int64) * MILLION)
        return pa.array(np.rint(values.astype(np.float64) * MILLION).astype(np.int64))  # half to even, as `round`

    def _column(self, name: str, expected: str, *kinds: Any) -> pa.Array:
        column = self._rows.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not any(is_kind(column.type) for is_kind in kinds):
            raise ConfigurationError(f"{where(self._view)}: column {name} is {column.type}; expected {expected}")
        self._check(name, column.is_null(), "is null; leave the event out, or repair it")
        return column

    def _check(self, name: str, is_wrong: pa.Array, fault: str) -> None:
        row = pc.index(is_wrong, True).as_py()
        if row >= 0:
            self._refuse(name, row, fault)

    def _refuse(self, name: str, row: int, fault: str) -> NoReturn:
        value = self._rows.column(name)[row].as_py()
        keys = [self._rows.column(key)[row].as_py() for key in self._plan.window.key]
        raise ConfigurationError(f"{where(self._view)}: column {name} of row {row} (entity {keys}) = {value!r} {fault}")

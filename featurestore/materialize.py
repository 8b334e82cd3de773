"""Moves a view from history into the online store: every entity's newest row as it was known at one instant.

Called by the local stack, which has the data at hand and wants all of it; `lifecycle.materialization` is the run that
remembers how far it came. Running it again, late, or beside a stream that writes the same view changes nothing that is
newer: the store's newest-wins rule decides, row by row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from featurestore.definitions import FeatureView, StoredRow
from featurestore.instants import from_us, to_us
from featurestore.offline.source import NO_SHIFT, Source, read_source
from featurestore.offline.timeline import newest_positions
from featurestore.online.store import BATCH_ROWS, OnlineStore, WriteResult

OnProgress: TypeAlias = Callable[[int, int], None]  # rows done, rows in all


@dataclass(frozen=True, slots=True)
class MaterializeResult:
    """`entities` known at the instant, and what became of their rows (`WriteResult`)."""

    entities: int
    written: int
    kept: int
    expired: int


async def materialize(
    view: FeatureView,
    store: OnlineStore,
    as_of: datetime,
    on_progress: OnProgress | None = None,
    shift: timedelta = NO_SHIFT,
) -> MaterializeResult:
    """Pushes every entity's newest row with event and created time at or before `as_of`; nothing later, ever.

    `shift` is added to both times of every row before `as_of` is applied. Idempotent: a second run writes nothing, and
    a run that died is finished by running it again. A row's offset is its position in the source. Of a windowed view
    the tiles are loaded, up to the last one complete at `as_of`; the stream goes on from there.

    Raises:
        ConfigurationError: a source that does not fit the view.
        StoreUnavailable: Redis away; what was pushed so far stays.
    """
    as_of_us = to_us(as_of, "as_of")
    if view.window is not None:
        seeded = await store.windows.seed(view.name, as_of, shift)
        if on_progress is not None:
            on_progress(seeded.entities, seeded.entities)
        return MaterializeResult(seeded.entities, seeded.written, seeded.kept, 0)
    source, positions = await asyncio.to_thread(_newest, view, as_of_us, shift)
    result = WriteResult()
    for start in range(0, len(positions), BATCH_ROWS):
        batch = pa.array(positions[start : start + BATCH_ROWS])
        result += await store.write(view, rows_at(source, batch))
        if on_progress is not None:
            on_progress(start + len(batch), len(positions))
    return MaterializeResult(len(positions), result.written, result.kept, result.expired)


def _newest(view: FeatureView, as_of_us: int, shift: timedelta) -> tuple[Source, np.ndarray]:
    source = read_source(view, [field.name for field in view.schema], shift)
    return source, newest_positions(source, as_of_us)


def rows_at(source: Source, positions: pa.Array) -> Iterator[StoredRow]:
    """The rows at some places of a source, in that order; a row's place is its offset."""
    names = list(source.columns)
    columns = [source.columns[name].take(positions).to_pylist() for name in names]
    instants = (source.event_us.take(positions).to_pylist(), source.created_us.take(positions).to_pylist())
    keys = source.keys.take(positions).to_pylist()
    offsets = positions.to_pylist()
    for i, (key, event_us, created_us) in enumerate(zip(keys, *instants, strict=True)):
        yield StoredRow(
            key=key,
            event_time=from_us(event_us),
            created_time=from_us(created_us),
            offset=offsets[i],
            values={name: column[i] for name, column in zip(names, columns, strict=True)},
        )

"""Which history row was the newest known at an instant: exact on both clocks, one sort and one ASOF join.

A row is known from `max(event_time, created_time)`. An ASOF join on event time with created time filtered afterwards
loses the older row that was all that was known; so the join runs on known-from instead. Rows are ranked by (entity,
event time, created time, position). Those that were known before all that rank above them form the entity's timeline,
which ascends in known-from too; every other row is never the newest at any instant. Its last entry at or before t is
the answer.

It sees keys, integers and positions; values are taken by position afterwards, so that no value passes through SQL.
Keys become numbers once: for 1,000,000 instants over 336,000 rows the join then takes 0.27 s of an EPYC core, in place
of 0.70 s over strings and sorted back, because places put what it found in the spine's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.offline.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AS_OF: Final = """
SELECT spine.place, timeline.position
FROM spine ASOF JOIN timeline ON spine.entity = timeline.entity AND spine.at_us >= timeline.known_us
"""


NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Ranked:
    """History rows by (entity, event time, created time, position), ascending: an entity's last row is its newest."""

    keys: pa.Array  # distinct; the number of an entity is the place of its key
    entity: NDArray[np.unsignedinteger[Any]]  # by rank
    position: NDArray[np.int64]  # by rank
    known_us: NDArray[np.int64]  # by position


def known_positions(source: Source, keys: pa.Array, at_us: pa.Array) -> NDArray[np.int64]:
    """For each (key, instant), in their order, the position of the newest row known then; -1 where there is none.

    `keys` is string and may hold nulls (never found); `at_us` is int64 without nulls.
    """
    ranked = _ranked(source)
    entity = pc.index_in(keys, value_set=ranked.keys)  # null where history has no such key, and null joins nothing
    with duckdb.connect(":memory:") as connection:
        connection.register("timeline", _timeline(ranked))
        connection.register("spine", pa.table({"entity": entity, "at_us": at_us, "place": np.arange(len(keys))}))
        found = connection.execute(_AS_OF).fetchnumpy()
    positions = np.full(len(keys), -1, np.int64)
    positions[found["place"]] = found["position"]
    return positions


def newest_positions(source: Source, as_of_us: int) -> NDArray[np.int64]:
    """The position of every entity's newest row known at `as_of_us`, ascending; entities not known yet are left out."""
    ranked = _ranked(source)
    is_known = ranked.known_us[ranked.position] <= as_of_us
    is_newest = np.diff(ranked.entity[is_known], append=-1) != 0
    return np.sort(ranked.position[is_known][is_newest])


def _ranked(source: Source) -> _Ranked:
    encoded = source.keys.dictionary_encode()
    entity, event_us, created_us = (a.to_numpy() for a in (encoded.indices, source.event_us, source.created_us))
    entity = entity.astype(np.min_scalar_type(len(encoded.dictionary)))  # numbers of 16 bits sort three times as fast
    position = np.lexsort((created_us, event_us, entity))  # stable: rows equal in all three stay in the file's order
    return _Ranked(encoded.dictionary, entity[position], position, np.maximum(event_us, created_us))


def _timeline(ranked: _Ranked) -> pa.Table:
    stamp = ranked.entity * np.int64(len(ranked.position)) + _places(ranked.known_us)[ranked.position]
    earliest = np.minimum.accumulate(stamp[::-1])[::-1]  # of a rank and all above; entities ascend, and so stamps do
    is_newest = stamp < np.append(earliest[1:], NEVER)
    position = ranked.position[is_newest]
    return pa.table(
        {
            "entity": ranked.entity[is_newest].astype(np.int32),
            "known_us": ranked.known_us[position],
            "position": position,
        }
    )


def _places(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each value among the distinct ones, ascending."""
    order = np.argsort(values, kind="stable")
    is_next = np.diff(values[order], prepend=values[order[:1]]) != 0
    places = np.empty(len(values), np.int64)
    places[order] = np.cumsum(is_next)
    return places

"""Which history row was the newest known at an instant: exact on both clocks, one sort and one ASOF join.

A row is known from `max(event_time, created_time)`. An ASOF join on event time with created time filtered afterwards
loses the older row that was all that was known; so the join runs on known-from instead. Sorted by it, with a running
newest by (event time, created time, position), the rows that are the newest at the moment they become known form the
entity's timeline; every other row is never the newest at any instant. Its last entry at or before t is the answer.

It sees keys, integers and positions; values are taken by position afterwards, so that no value passes through SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from featurestore.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIMELINE: Final = """
CREATE TEMP TABLE timeline AS
SELECT key, known_from, position FROM (
  SELECT *, max(recency) OVER (PARTITION BY key ORDER BY known_from) AS newest FROM (
    SELECT key, position, greatest(event_us, created_us) AS known_from,
      row_number() OVER (PARTITION BY key ORDER BY event_us, created_us, position) AS recency
    FROM source))
WHERE recency = newest
"""

_AS_OF: Final = """
SELECT coalesce(timeline.position, -1) AS position
FROM spine ASOF LEFT JOIN timeline ON spine.key = timeline.key AND spine.at_us >= timeline.known_from
ORDER BY spine.ordinal
"""

_NEWEST: Final = """
SELECT arg_max(position, known_from) AS position FROM timeline WHERE known_from <= ? GROUP BY key ORDER BY position
"""


def known_positions(source: Source, keys: pa.Array, at_us: pa.Array) -> NDArray[np.int64]:
    """For each (key, instant), in their order, the position of the newest row known then; -1 where there is none.

    `keys` is string and may hold nulls (never found); `at_us` is int64 without nulls.
    """
    spine = pa.table({"key": keys, "at_us": at_us, "ordinal": np.arange(len(keys))})
    with _timeline(source) as connection:
        connection.register("spine", spine)
        return _positions(connection.execute(_AS_OF))


def newest_positions(source: Source, as_of_us: int) -> NDArray[np.int64]:
    """The position of every entity's newest row known at `as_of_us`, ascending; entities not known yet are left out."""
    with _timeline(source) as connection:
        return _positions(connection.execute(_NEWEST, [as_of_us]))


def _timeline(source: Source) -> Any:
    connection = duckdb.connect(":memory:")
    connection.register(
        "source",
        pa.table(
            {
                "key": source.keys,
                "event_us": source.event_us,
                "created_us": source.created_us,
                "position": np.arange(len(source)),
            }
        ),
    )
    connection.execute(_TIMELINE)
    return connection


def _positions(result: Any) -> NDArray[np.int64]:
    return np.asarray(result.fetchnumpy()["position"], dtype=np.int64)

"""Events of history grouped by DuckDB into parts of tiles: what came to be known together of one entity and tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from featurestore.windows import sketches
from featurestore.windows.plan import WindowPlan
from featurestore.windows.tile import MILLION, Content, Holds, Newest, Tile

FETCHED: Final = 10_000

_MADE: Final = {
    Holds.SUM: "sum({0}::HUGEINT)",
    Holds.SQUARES: "sum({0}::HUGEINT * {0}::HUGEINT)",
    Holds.MIN: "min({0})",
    Holds.MAX: "max({0})",
    Holds.NEWEST: 'max(struct_pack(event_us := event_us, source := source, "offset" := "offset", amount := {0}), {1})',
    Holds.DISTINCT: "list(DISTINCT {0})",
    Holds.QUANTILES: "list({0})",
}


@dataclass(frozen=True, slots=True)
class Version:
    """What a tile, or the window that ends with it, held from `known_us` on; a part of either is one too."""

    tile: int
    known_us: int
    held: Tile


def parts_by_entity(plan: WindowPlan, events: pa.Table) -> Iterator[tuple[str, list[Version]]]:
    """Each entity with its parts by tile, and within a tile by the instant at which they were known: its end, or when
    an event that came later was created. `events` are those of `read_events`; of two with the same coordinates, as an
    archive may hold them, the one known first counts."""
    tiles = -(-events["event_us"].to_numpy() // plan.tile_us)
    known = np.maximum(events["created_us"].to_numpy(), tiles * plan.tile_us)
    placed = events.append_column("tile", pa.array(tiles)).append_column("known_us", pa.array(known))
    with duckdb.connect(":memory:") as connection:
        connection.register("placed", placed)
        connection.execute(_grouping(plan))
        rows = iter(lambda: connection.fetchmany(FETCHED), [])
        parts = (row for batch in rows for row in batch)
        for key, of_key in groupby(parts, key=itemgetter(0)):
            yield key, [_part(plan, row) for row in of_key]


def _grouping(plan: WindowPlan) -> str:
    measured = [plan.measures.index(content.measure) for content in plan.contents]
    made = [_MADE[c.holds].format(f"m{i}", c.size) for c, i in zip(plan.contents, measured, strict=True)]
    return f"""
    WITH counted AS (
      SELECT * FROM placed
      QUALIFY row_number() OVER (PARTITION BY key, tile, source, "offset" ORDER BY created_us, event_us) = 1
    )
    SELECT key, tile, known_us, {", ".join(["count(*)", *made])} FROM counted GROUP BY ALL ORDER BY ALL
    """


def _part(plan: WindowPlan, row: tuple[Any, ...]) -> Version:
    _, tile, known_us, events, *made = row
    contents = tuple(_content(content, value) for content, value in zip(plan.contents, made, strict=True))
    return Version(tile, known_us, Tile(events, contents))


def _content(content: Content, made: Any) -> Any:
    match content.holds:
        case Holds.NEWEST:
            return tuple(Newest(**entry) for entry in made)
        case Holds.DISTINCT:
            return sketches.with_texts(None, made)
        case Holds.QUANTILES:
            return sketches.with_numbers(None, [amount / MILLION for amount in made])
    return int(made)

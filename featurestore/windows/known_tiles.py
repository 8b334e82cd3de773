"""The tiles of history: the file that a backfill writes, which columns it has, and what of it was known at an instant.

Sums and extremes are decimals with six places, so that they are exact; a sum that somebody else computed may be a
float64. Squares have twelve places. Lists of the newest and sketches are the bytes that the online store keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.errors import ConfigurationError
from featurestore.definitions import DECIMAL_DIGITS, FeatureType, FeatureView, Field
from featurestore.offline.source import read_source
from featurestore.offline.source_schema import open_source, reading
from featurestore.windows.layout import packed_list, unpacked_list
from featurestore.windows.plan import WindowPlan
from featurestore.windows.tile import MILLION, Content, Holds, Tile

EVENTS: Final = "events"
EXACT: Final = Context(prec=60)
PLACES: Final = {Holds.SUM: 6, Holds.MIN: 6, Holds.MAX: 6, Holds.SQUARES: 12}


def tile_view(plan: WindowPlan, found: pa.Schema | None = None) -> FeatureView:
    """The history of the tiles as a view of its own, so that it is read and checked like every other source; sums are
    floats where they are in the file that was `found`."""
    return FeatureView(
        name=plan.view.name,
        version=plan.view.version,
        entity=plan.view.entity,
        schema=(Field(name=EVENTS, type=FeatureType.INT64), *(_field(content, found) for content in plan.contents)),
        source=plan.window.tiles,
        ttl_s=plan.view.ttl_s,
        owner=plan.view.owner,
    )


def _field(content: Content, found: pa.Schema | None) -> Field:
    name = content.name
    if content.holds not in PLACES:
        return Field(name=name, type=FeatureType.BYTES)
    is_float = found is not None and name in found.names and pa.types.is_floating(found.field(name).type)
    if content.holds is Holds.SUM and is_float:
        return Field(name=name, type=FeatureType.FLOAT64, refuse_nan=True)
    return Field(name=name, type=FeatureType.DECIMAL, decimal_places=PLACES[content.holds])


def known_tiles(plan: WindowPlan, as_of_us: int, shift: timedelta) -> dict[str, dict[int, Tile]]:
    """By entity, the kept tiles that were known at `as_of_us` and complete by then. An entity may have none.

    Of two rows of one tile, the one created later holds, then the one further down in the file.

    Raises:
        ConfigurationError: a file that does not fit the window; it names view and column.
        StoreUnavailable: the file cannot be read now.
    """
    base = tile_view(plan)
    with reading(base):
        view = tile_view(plan, open_source(base).schema)
    names = [field.name for field in view.schema]
    source = read_source(view, names, shift)
    upto = plan.tick_of(as_of_us)
    is_known = pc.and_(pc.less_equal(source.event_us, upto * plan.tile_us), pc.less_equal(source.created_us, as_of_us))
    tiles: dict[str, dict[int, Tile]] = defaultdict(dict)
    for key in pc.unique(source.keys.filter(is_known)).to_pylist():
        tiles[key] = {}
    is_kept = pc.and_(is_known, pc.greater(source.event_us, (upto - plan.kept_tiles) * plan.tile_us))
    columns = {"key": source.keys, "us": source.event_us, "created": source.created_us, **source.columns}
    table = pa.table(columns).filter(is_kept)
    order = pc.sort_indices(
        table.append_column("row", pa.array(range(len(table)))), [("created", "ascending"), ("row", "ascending")]
    )
    for row in table.take(order).to_pylist():
        if row["us"] % plan.tile_us:
            raise ConfigurationError(f"feature view {plan.view.name}: a tile of its history does not end on a tick")
        tiles[row["key"]][row["us"] // plan.tile_us] = _tile(plan, row)
    return tiles


def _tile(plan: WindowPlan, row: dict[str, Any]) -> Tile:
    lacking = [name for name in (EVENTS, *(content.name for content in plan.contents)) if row[name] is None]
    if lacking or row[EVENTS] < 1:
        raise ConfigurationError(
            f"feature view {plan.view.name}: a tile of entity {row['key']!r} in its history has {row[EVENTS]} events"
            f" and no {lacking}; leave a tile without events out"
        )
    return Tile(row[EVENTS], tuple(_READ[content.holds](row[content.name]) for content in plan.contents))


def tile_columns(plan: WindowPlan, tiles: Sequence[Tile]) -> list[pa.Array]:
    """Tiles as columns of their history, in the order of `tile_view`'s schema."""
    events = pa.array([tile.events for tile in tiles], pa.int64())
    parts = enumerate(plan.contents)
    return [events, *(_column(content, [tile.contents[i] for tile in tiles]) for i, content in parts)]


def _column(content: Content, values: list[Any]) -> pa.Array:
    if content.holds is Holds.NEWEST:
        return pa.array([packed_list(value) for value in values], pa.binary())
    if content.holds not in PLACES:
        return pa.array(values, pa.binary())
    unit = Decimal(10 ** PLACES[content.holds])
    kind = pa.decimal128(DECIMAL_DIGITS, PLACES[content.holds])
    return pa.array([EXACT.divide(Decimal(value), unit) for value in values], kind)


def _whole(unit: int) -> Callable[[Decimal | float], int]:
    def whole(value: Decimal | float) -> int:
        return round(value * unit) if isinstance(value, float) else int(EXACT.multiply(value, Decimal(unit)))

    return whole


_READ: Final[dict[Holds, Callable[[Any], Any]]] = {
    Holds.SUM: _whole(MILLION),
    Holds.MIN: _whole(MILLION),
    Holds.MAX: _whole(MILLION),
    Holds.SQUARES: _whole(MILLION**2),
    Holds.NEWEST: unpacked_list,
    Holds.DISTINCT: bytes,
    Holds.QUANTILES: bytes,
}

"""A window's past from the events of its past: its tiles, and its rows at every tick, both on two clocks.

The same definition as the stream's: what makes a window of the parts that DuckDB finds (`parts`) is what makes it
online (`tile.combined`, `WindowPlan.values`). An event that became known after its tile's end makes a new version of
the tile, and of every row that covers it, created then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

import pyarrow.compute as pc

from core_engine.errors import ConfigurationError
from featurestore.catalog import compile_view
from featurestore.definitions import FeatureView
from featurestore.instants import duration_us
from featurestore.windows.events import read_events
from featurestore.windows.history_files import history_files
from featurestore.windows.parts import Version, parts_by_entity
from featurestore.windows.plan import WindowPlan
from featurestore.windows.tile import combined

OnProgress: TypeAlias = Callable[[int, int], None]  # entities done, entities in all


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What was read and written; a tile or row of which several versions were known counts as often."""

    events: int
    entities: int
    tiles: int
    rows: int


def backfill_window(view: FeatureView, on_progress: OnProgress | None = None) -> Backfilled:
    """Make `view.window.tiles` and `view.source` from `view.window.events`. Both files are written aside and then put
    in place, so that each is there whole, as it was before or anew. Doing it again writes the same, but for the chance
    in quantile sketches.

    A row of the view is what `WindowPlan.row_at` serves at its tick. An entity has one at every tick from its first
    event on for as long as its window has events, and then until the TTL has passed, so that what was is never taken
    for what is. Nobody has one after the newest tile of all.

    Raises:
        ConfigurationError: a view without a window, or events that do not fit it; names view, column and row.
        StoreUnavailable: the events cannot be read, or the files not be written, now.
    """
    plan = compile_view(view).plan
    if plan is None or plan.window.events is None:
        raise ConfigurationError(
            f"feature view {view.name} has no window with `events`: there is nothing to make it from"
        )
    events = read_events(plan)
    num_entities = len(events["key"].unique())
    horizon = plan.tile_of(pc.max(events["event_us"]).as_py()) if len(events) else 0
    with history_files(plan) as (tiles, rows):
        for done, (key, parts) in enumerate(parts_by_entity(plan, events), start=1):
            tiles.add(key, list(tile_versions(plan, parts)))
            rows.add(key, list(window_versions(plan, parts, horizon)))
            if on_progress is not None:
                on_progress(done, num_entities)
    return Backfilled(len(events), num_entities, tiles.num_rows, rows.num_rows)


def tile_versions(plan: WindowPlan, parts: Sequence[Version]) -> Iterator[Version]:
    """Each tile as it came to be known; `parts` are one entity's, in their order."""
    for tile, of_tile in groupby(parts, key=lambda part: part.tile):
        so_far = []
        for part in of_tile:
            so_far.append(part.held)
            yield Version(tile, part.known_us, combined(plan.contents, so_far))


def window_versions(plan: WindowPlan, parts: Sequence[Version], horizon: int) -> Iterator[Version]:
    """The window at each tick up to `horizon` that has a row, as it came to be known; `parts` as above."""
    tiles = [part.tile for part in parts]
    first_known_us = min(part.known_us for part in parts)
    for tick in _ticks(plan, tiles, horizon):
        low, high = bisect_left(tiles, tick - plan.window.num_tiles + 1), bisect_right(tiles, tick)
        covered, end_us = parts[low:high], tick * plan.tile_us
        instants = {max(end_us, known_us) for known_us in (first_known_us, *(part.known_us for part in covered))}
        for known_us in sorted(instants):
            held = [part.held for part in covered if part.known_us <= known_us]
            yield Version(tick, known_us, combined(plan.contents, held))


def _ticks(plan: WindowPlan, tiles: Sequence[int], horizon: int) -> Iterator[int]:
    """After each tile those that it is in the window of, and those until a row of it would be stale."""
    reach = plan.window.num_tiles + -(-duration_us(plan.view.ttl_s) // plan.tile_us)
    for tile, next_tile in pairwise([*tiles, horizon + 1]):
        for tick in range(tile, min(tile + reach, next_tile, horizon + 1)):
            if tick == plan.last_tile(tick):
                yield tick

"""Writes windows: events from the stream, tiles from history, and how far both have come.

The stream door applies events in the order of their partition; the local stack and the nightly job seed. Every call is
safe to repeat: an event counts once per coordinates, a seed only if it reaches further than the one before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from redis.asyncio import Redis

from core_engine.errors import ConfigurationError
from featurestore.catalog import CompiledView, checked_key, compile_view
from featurestore.definitions import FeatureView
from featurestore.instants import duration_us, to_us
from featurestore.keys import applied_key, progress_key, window_key
from featurestore.server_functions import called
from featurestore.source import NO_SHIFT, Source, read_source
from featurestore.windows.plan import EVENTS, MILLION, WindowPlan, tile_view
from featurestore.windows.state import ADVANCE, APPLY, LIBRARY, SEED, SEEDED, Applied


@dataclass(frozen=True, slots=True)
class WindowEvent:
    """One event for one windowed view. `source` ("topic/partition") and `offset` are its coordinates for ever."""

    view: str
    key: str
    event_time: datetime
    amounts: tuple[int, ...]  # `WindowPlan.amounts`
    source: str
    offset: int


@dataclass(frozen=True, slots=True)
class SeedResult:
    """`entities` known in history; `written` of them were seeded, `kept` had a seed that reaches as far."""

    entities: int
    written: int
    kept: int


class WindowStore:
    """The windowed ones among `views`. `retention_s` is how long an entity is kept that nothing writes any more."""

    def __init__(self, client: Redis, views: Iterable[FeatureView], retention_s: float) -> None:
        self._client = client
        windowed = [compile_view(view) for view in views if view.window is not None]
        self._views: dict[str, CompiledView] = {compiled.view.name: compiled for compiled in windowed}
        self._retention_us = duration_us(retention_s)

    def plans(self, topic: str) -> list[WindowPlan]:
        """The windows that the events of `topic` feed."""
        return [plan for c in self._views.values() if (plan := c.plan) is not None and plan.window.topic == topic]

    async def apply(self, events: Sequence[WindowEvent]) -> list[Applied]:
        """What became of each event, in one round trip; events are applied in the order given.

        Raises:
            StoreUnavailable: Redis away; some may have been applied, and doing it again does not count them twice.
        """
        replies = await called(self._client, LIBRARY, [self._applying(event) for event in events])
        return [Applied(reply.decode()) for reply in replies]

    async def advance(self, view: str, progress: Mapping[str, datetime]) -> None:
        """Note that each source is applied up to its instant. Never goes back. Raises `StoreUnavailable`."""
        compiled = self._compiled(view)
        key, lifetime = progress_key(compiled.view), self._lifetime_ms(compiled)
        calls = [("FCALL", ADVANCE, 1, key, source, to_us(at, "progress"), lifetime) for source, at in progress.items()]
        await called(self._client, LIBRARY, calls)

    async def seed(self, view: str, as_of: datetime, shift: timedelta = NO_SHIFT) -> SeedResult:
        """Load the tiles of history as known at `as_of`, up to the last one complete by then.

        What history covers is settled: events of those tiles that the stream still brings are told `seeded`.
        """
        compiled = self._compiled(view)
        plan = compiled.plan
        assert plan is not None
        as_of_us = to_us(as_of, "as_of")
        upto = plan.tick_of(as_of_us)
        tiles = await asyncio.to_thread(_known_tiles, plan, as_of_us, shift)
        calls = [self._seeding(compiled, key, upto, numbers) for key, numbers in tiles.items()]
        written = sum(await called(self._client, LIBRARY, calls))
        lifetime = self._lifetime_ms(compiled)
        done = ("FCALL", ADVANCE, 1, progress_key(compiled.view), SEEDED, upto * plan.tile_us, lifetime)
        await called(self._client, LIBRARY, [done])
        return SeedResult(len(tiles), written, len(tiles) - written)

    def _compiled(self, view: str) -> CompiledView:
        if view not in self._views:
            raise ConfigurationError(f"feature view {view!r} has no window here; windowed: {sorted(self._views)}")
        return self._views[view]

    def _lifetime_ms(self, compiled: CompiledView) -> int:
        """From the last write: event times may lie far back in a replay, and must not expire what was just written."""
        return (compiled.ttl_us + self._retention_us) // 1000

    def _applying(self, event: WindowEvent) -> tuple[Any, ...]:
        compiled = self._compiled(event.view)
        plan = compiled.plan
        assert plan is not None
        key = checked_key(compiled.view, event.key)
        event_us = to_us(event.event_time, "event_time")
        tile = plan.tile_of(event_us)
        keys = (window_key(compiled.view, key), applied_key(compiled.view, key))
        place = (event_us // 1000, tile, tile * plan.tile_us // 1000, plan.grace_us // 1000, plan.kept_tiles)
        return (
            *("FCALL", APPLY, 2, *keys, event.source, event.offset),
            *(*place, self._lifetime_ms(compiled), *event.amounts),
        )

    def _seeding(
        self, compiled: CompiledView, key: str, upto: int, numbers: Mapping[int, list[int]]
    ) -> tuple[Any, ...]:
        plan = compiled.plan
        assert plan is not None
        keys = (window_key(compiled.view, key), applied_key(compiled.view, key))
        tiles = [number for tile, row in numbers.items() for number in (tile, *row)]
        sizes = (plan.kept_tiles, self._lifetime_ms(compiled), len(plan.measures))
        return ("FCALL", SEED, 2, *keys, upto, *sizes, *tiles)


def _known_tiles(plan: WindowPlan, as_of_us: int, shift: timedelta) -> dict[str, dict[int, list[int]]]:
    """By entity, the kept tiles known at `as_of_us`: events, then sums in millionths. An entity may have none.

    Of two rows of one tile, the one created later holds, then the one further down in the file.
    """
    names = [EVENTS, *(measure.name for measure in plan.measures)]
    source = read_source(tile_view(plan), names, shift)
    lacking = [name for name in names if name not in source.columns]
    if lacking:
        raise ConfigurationError(f"feature view {plan.view.name}: the history of its tiles lacks {lacking}")
    upto = plan.tick_of(as_of_us)
    is_known = pc.and_(pc.less_equal(source.event_us, upto * plan.tile_us), pc.less_equal(source.created_us, as_of_us))
    tiles: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for key in pc.unique(source.keys.filter(is_known)).to_pylist():
        tiles[key] = {}
    oldest_us = (upto - plan.kept_tiles) * plan.tile_us
    is_kept = pc.and_(is_known, pc.greater(source.event_us, oldest_us))
    for key, event_us, *numbers in _rows(source, names, pc.indices_nonzero(is_kept)):
        if event_us % plan.tile_us:
            raise ConfigurationError(f"feature view {plan.view.name}: a tile of its history does not end on a tick")
        tiles[key][event_us // plan.tile_us] = [numbers[0], *(round(total * MILLION) for total in numbers[1:])]
    return tiles


def _rows(source: Source, names: Sequence[str], positions: pa.Array) -> list[tuple[Any, ...]]:
    columns = [source.keys, source.event_us, *(source.columns[name] for name in names)]
    created = source.created_us.take(positions).to_pylist()
    rows = list(zip(*(column.take(positions).to_pylist() for column in columns), strict=True))
    return [row for _, row in sorted(zip(created, rows, strict=True), key=lambda pair: pair[0])]

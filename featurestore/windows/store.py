"""Writes windows: events from the stream, tiles from history, and how far both have come.

The stream door applies events in the order of their partition; the local stack and the nightly job seed. Every call is
safe to repeat: an event counts once per coordinates, a seed only if it reaches further than the one before.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from redis.asyncio import Redis

from core_engine.errors import ConfigurationError
from featurestore.catalog import CompiledView, checked_key, compile_view
from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.instants import duration_us, to_us
from featurestore.keys import applied_key, late_key, progress_key, window_key
from featurestore.offline.source import NO_SHIFT
from featurestore.online.server_functions import called, pipelined
from featurestore.windows.batches import Batch, WindowEvent, batched
from featurestore.windows.functions import ADVANCE, APPLY, LIBRARY, PEEK, SEED
from featurestore.windows.known_tiles import known_tiles
from featurestore.windows.late import LateEvent, late_events, putting_aside
from featurestore.windows.plan import WindowPlan
from featurestore.windows.state import OUTCOMES, SEEDED, Applied
from featurestore.windows.tile import Tile

SEED_BATCH: Final = 500  # entities of one round trip
TOO_LATE: Final = {Applied.LATE, Applied.EXPIRED}


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
        """What became of each event; those of one entity are applied in the order given. One round trip, and two for
        windows with sketches, or more where somebody else writes the same entity. Late events are put aside.

        Raises:
            InvalidRequest: an event whose key, time or coordinates are none; nothing was applied.
            StoreUnavailable: Redis away; some may have been applied, and doing it again does not count them twice.
            UnreadablePayload: a sketch that this store did not write; names view and entity.
        """
        batches = batched(events, self._opened)
        outcomes = await self._apply_plain([b for b in batches if not b.plan.layout.sketches])
        outcomes |= await self._apply_sketched([b for b in batches if b.plan.layout.sketches])
        await self._put_aside([LateEvent(o, events[at]) for at, o in sorted(outcomes.items()) if o in TOO_LATE])
        return [outcomes[position] for position in range(len(events))]

    async def late_events(self, view: str, limit: int = 100) -> list[LateEvent]:
        """Up to `limit` of the events that came too late for this view, the last to come first; the newest `MAX_LATE`
        are kept. Raises `StoreUnavailable`."""
        declared = self._compiled(view).view
        [entries] = await pipelined(self._client, [("XREVRANGE", late_key(declared), "+", "-", "COUNT", limit)])
        return late_events(declared, entries)

    async def advance(self, view: str, progress: Mapping[str, datetime]) -> None:
        """Note that each source is applied up to its instant. Never goes back. Raises `StoreUnavailable`."""
        compiled = self._compiled(view)
        key, lifetime = progress_key(compiled.view), self._lifetime_ms(compiled)
        calls = [("FCALL", ADVANCE, 1, key, source, to_us(at, "progress"), lifetime) for source, at in progress.items()]
        await called(self._client, LIBRARY, calls)

    async def seed(self, view: str, as_of: datetime, shift: timedelta = NO_SHIFT) -> SeedResult:
        """Load the tiles of history as known at `as_of`, up to the last one complete by then.

        What history covers is settled: events of those tiles that the stream still brings are told `seeded`.

        Raises:
            ConfigurationError: a history of tiles that does not fit its window.
            StoreUnavailable: Redis away, or the file cannot be read; doing it again finishes it.
        """
        compiled = self._compiled(view)
        plan = compiled.plan
        assert plan is not None
        as_of_us = to_us(as_of, "as_of")
        upto = plan.tick_of(as_of_us)
        tiles = await asyncio.to_thread(known_tiles, plan, as_of_us, shift)
        calls = [self._seeding(compiled, plan, key, upto, held) for key, held in tiles.items()]
        written = 0
        for start in range(0, len(calls), SEED_BATCH):
            written += sum(await called(self._client, LIBRARY, calls[start : start + SEED_BATCH]))
        lifetime = self._lifetime_ms(compiled)
        done = ("FCALL", ADVANCE, 1, progress_key(compiled.view), SEEDED, upto * plan.tile_us, lifetime)
        await called(self._client, LIBRARY, [done])
        return SeedResult(len(tiles), written, len(tiles) - written)

    async def _apply_plain(self, batches: Sequence[Batch]) -> dict[int, Applied]:
        replies = await called(self._client, LIBRARY, [batch.call(APPLY) for batch in batches])
        return _outcomes(batches, replies)

    async def _apply_sketched(self, waiting: Sequence[Batch]) -> dict[int, Applied]:
        """Compare and set: whose window changed between the look and the write is looked at again. Each loss is
        somebody else's progress, so that this ends."""
        outcomes: dict[int, Applied] = {}
        while waiting:
            turn, later = _one_of_each(waiting)
            seen = await called(self._client, LIBRARY, [b.call(PEEK) for b in turn])
            calls = [_merging(batch, *reply) for batch, reply in zip(turn, seen, strict=True)]
            replies = await called(self._client, LIBRARY, calls)
            done = [(batch, reply) for batch, reply in zip(turn, replies, strict=True) if reply]
            outcomes |= _outcomes([batch for batch, _ in done], [reply for _, reply in done])
            waiting = [*(batch for batch, reply in zip(turn, replies, strict=True) if not reply), *later]
        return outcomes

    async def _put_aside(self, late: Sequence[LateEvent]) -> None:
        commands = []
        for name in dict.fromkeys(each.event.view for each in late):
            compiled, of_view = self._compiled(name), [each for each in late if each.event.view == name]
            commands += putting_aside(compiled.view, of_view, self._lifetime_ms(compiled))
        await pipelined(self._client, commands)

    def _compiled(self, view: str) -> CompiledView:
        if view not in self._views:
            raise ConfigurationError(f"feature view {view!r} has no window here; windowed: {sorted(self._views)}")
        return self._views[view]

    def _lifetime_ms(self, compiled: CompiledView) -> int:
        """From the last write: event times may lie far back in a replay, and must not expire what was just written."""
        return (compiled.ttl_us + self._retention_us) // 1000

    def _opened(self, view: str, key: str) -> Batch:
        compiled = self._compiled(view)
        assert compiled.plan is not None
        return Batch(compiled.plan, checked_key(compiled.view, key), self._lifetime_ms(compiled))

    def _seeding(
        self, compiled: CompiledView, plan: WindowPlan, key: str, upto: int, tiles: Mapping[int, Tile]
    ) -> tuple[Any, ...]:
        keys = (window_key(compiled.view, key), applied_key(compiled.view, key))
        fields = [
            part for number, tile in tiles.items() for field in plan.layout.fields(number, tile) for part in field
        ]
        sizes = (upto, plan.kept_tiles, self._lifetime_ms(compiled), uuid.uuid4().hex)
        return ("FCALL", SEED, 2, *keys, *sizes, *fields)


def _one_of_each(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """The first batch of each entity, and the others."""
    first: dict[tuple[str, str], Batch] = {}
    later = [b for b in batches if first.setdefault((b.plan.view.name, b.key), b) is not b]
    return list(first.values()), later


def _merging(batch: Batch, outcomes: bytes, version: bytes, *held: bytes | None) -> tuple[Any, ...]:
    is_applied = [OUTCOMES[code] is Applied.APPLIED for code in outcomes]
    try:
        merged = batch.merged(is_applied, held)
    except UnreadablePayload as error:
        view = batch.plan.view
        raise UnreadablePayload(f"feature view {view.name}, entity {view.entity} = {batch.key!r}: {error}") from None
    return batch.call(APPLY, version, uuid.uuid4().hex, *merged)


def _outcomes(batches: Sequence[Batch], replies: Sequence[bytes]) -> dict[int, Applied]:
    return {
        position: OUTCOMES[code]
        for batch, reply in zip(batches, replies, strict=True)
        for position, code in zip(batch.positions, reply, strict=True)
    }

"""A run that brings a view online and remembers how far it came: incremental, resumable, paced, in shards.

The same rows as `featurestore.materialize`, fewer of them. One run per view version at a time, by a lease; each batch
goes to the store first, then into the store's mark, then into the registry, so that neither ever claims too much. The
watermark moves when every shard is done. `headrace features materialize` and the nightly job call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
from redis.asyncio import Redis

from featurestore.definitions import FeatureView
from featurestore.instants import Clock, to_us, utc_now
from featurestore.lifecycle.history import Shard, digest, shards
from featurestore.lifecycle.leases import leased
from featurestore.lifecycle.marks import Marks
from featurestore.lifecycle.pace import Pace, pace
from featurestore.lifecycle.runs import Kind, Plan, Wanted, plan
from featurestore.lifecycle.watermarks import Cursor, Lease, Watermark, Watermarks
from featurestore.materialize import OnProgress, rows_at
from featurestore.offline.source import NO_SHIFT, Source, read_source
from featurestore.online.store import BATCH_ROWS, OnlineStore, WriteResult

BATCHES_A_SECOND: Final = 4  # of a paced run: what it writes comes evenly


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is done. `as_of` None: now. `shift` is added to both clocks of the source."""

    as_of: datetime | None = None
    rows_per_second: float | None = None
    num_shards: int = 1
    is_full: bool = False
    shift: timedelta = NO_SHIFT


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did and why. `entities` had a row to be written; of those, `WriteResult` says what became.

    `watermark` is the view version's after the run: a rebuild of the past has not moved it.
    """

    view: str
    version: int
    kind: Kind
    why: str
    as_of: datetime
    watermark: datetime | None
    entities: int
    written: int
    kept: int
    expired: int
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class _Work:
    """One run under way."""

    view: FeatureView
    lease: Lease
    plan: Plan
    source: Source
    pace: Pace
    batch_rows: int
    progress: _Progress


class Materializer:
    """Runs over one store, whose views it is given one by one; `client` is the store's Redis."""

    def __init__(self, client: Redis, store: OnlineStore, watermarks: Watermarks, clock: Clock = utc_now) -> None:
        self._store = store
        self._marks = Marks(client)
        self._watermarks = watermarks
        self._clock = clock

    async def run(
        self, view: FeatureView, options: Options = Options(), on_progress: OnProgress | None = None
    ) -> RunReport:
        """Bring `view` online as known at `options.as_of`; safe to repeat after any failure, and then it goes on.

        Of a windowed view the tiles are loaded, all at once; shards and rate are for the others.

        Raises:
            InvalidRequest: a naive `as_of`, or a row that does not fit; the watermark stays.
            ConfigurationError: a source that does not fit the view, or a deleted view; nothing is written.
            ViewBusy: another run, or a deletion, holds this view version.
            StoreUnavailable: Redis away; what is written stays.
        """
        as_of = options.as_of or self._clock()
        to_us(as_of, "as_of")
        wanted = Wanted(as_of, options.num_shards, options.is_full)
        async with leased(self._watermarks, view.name, view.version) as lease:
            await asyncio.to_thread(self._watermarks.check_alive, view.name, view.version)
            if view.window is not None:
                return await self._seed(view, lease, wanted, options.shift, on_progress)
            return await self._run(view, lease, wanted, options, on_progress)

    async def _run(
        self, view: FeatureView, lease: Lease, wanted: Wanted, options: Options, on_progress: OnProgress | None
    ) -> RunReport:
        names = [field.name for field in view.schema]
        source = await asyncio.to_thread(read_source, view, names, options.shift)
        made = await self._plan(view, source, wanted)
        await asyncio.to_thread(self._watermarks.begin, lease, made.run)
        parts = await asyncio.to_thread(_shards, source, made)
        total = sum(map(len, parts))
        rate = options.rows_per_second
        batch_rows = BATCH_ROWS if rate is None else max(1, min(BATCH_ROWS, int(rate / BATCHES_A_SECOND)))
        progress = _Progress(total, on_progress)
        work = _Work(view, lease, made, source, pace(rate, batch_rows), batch_rows, progress)
        result = await self._write(work, parts)
        watermark = await self._finish(view, lease, made)
        return _report(view, made, watermark, total, result)

    async def _plan(self, view: FeatureView, source: Source, wanted: Wanted) -> Plan:
        standing = await asyncio.to_thread(self._watermarks.standing, view.name, view.version)
        held = await self._marks.read(view)
        return await asyncio.to_thread(plan, wanted, standing, held, lambda at: digest(source, to_us(at, "watermark")))

    async def _write(self, work: _Work, parts: Sequence[Shard]) -> WriteResult:
        writing = [asyncio.create_task(self._write_shard(work, shard)) for shard in parts if len(shard)]
        try:
            return sum(await asyncio.gather(*writing), WriteResult())
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _write_shard(self, work: _Work, shard: Shard) -> WriteResult:
        result = WriteResult()
        for positions, cursor in _batches(shard, work.batch_rows):
            await work.pace.take(len(positions))
            result += await self._store.write(work.view, rows_at(work.source, positions))
            await self._marks.save(work.view, work.plan.run.token, shard.number, cursor)
            await asyncio.to_thread(self._watermarks.save, work.lease, shard.number, cursor)
            work.progress.add(len(positions))
        return result

    async def _finish(self, view: FeatureView, lease: Lease, made: Plan) -> datetime | None:
        """The watermark after the run. The store's mark first: where only that is done, the next run is a full one."""
        run = made.run
        if run.kind == Kind.REBUILD:
            await self._marks.drop(view, run.token, run.num_shards)
            await asyncio.to_thread(self._watermarks.finish, lease, None)
        else:
            await self._marks.finish(view, run.as_of)
            await asyncio.to_thread(self._watermarks.finish, lease, Watermark(run.as_of, run.digest))
        return await self._watermark(view)

    async def _watermark(self, view: FeatureView) -> datetime | None:
        standing = await asyncio.to_thread(self._watermarks.standing, view.name, view.version)
        return None if standing.watermark is None else standing.watermark.at

    async def _seed(
        self, view: FeatureView, lease: Lease, wanted: Wanted, shift: timedelta, on_progress: OnProgress | None
    ) -> RunReport:
        """Tiles are settled up to a tick, so that a later seed has them all: there is nothing to go on from."""
        before = await self._watermark(view)
        is_past = before is not None and wanted.as_of < before
        seeded = await self._store.windows.seed(view.name, wanted.as_of, shift)
        if on_progress is not None:
            on_progress(seeded.entities, seeded.entities)
        if not is_past:
            await self._marks.finish(view, wanted.as_of)
        await asyncio.to_thread(self._watermarks.finish, lease, None if is_past else Watermark(wanted.as_of, None))
        kind = Kind.REBUILD if is_past else Kind.FULL
        after = await self._watermark(view)
        counts = (seeded.entities, seeded.written, seeded.kept, 0)
        return RunReport(view.name, view.version, kind, "a window's tiles", wanted.as_of, after, *counts)


class _Progress:
    """Rows done over all shards."""

    def __init__(self, total: int, tell: OnProgress | None) -> None:
        self._total = total
        self._tell = tell
        self._done = 0

    def add(self, rows: int) -> None:
        self._done += rows
        if self._tell is not None:
            self._tell(self._done, self._total)


def _shards(source: Source, made: Plan) -> list[Shard]:
    run = made.run
    since_us = None if run.since is None else to_us(run.since, "watermark")
    return shards(source, to_us(run.as_of, "as_of"), since_us, run.num_shards, run.cursors)


def _batches(shard: Shard, rows: int) -> Iterator[tuple[pa.Array, Cursor]]:
    """Places of at most `rows` rows, and the cursor when they are written."""
    for start in range(0, len(shard), rows):
        positions = shard.positions[start : start + rows]
        known_us = shard.known_us[start : start + rows]
        yield pa.array(np.ascontiguousarray(positions)), Cursor(int(known_us[-1]), int(positions[-1]))


def _report(view: FeatureView, made: Plan, watermark: datetime | None, entities: int, result: WriteResult) -> RunReport:
    return RunReport(
        view.name,
        view.version,
        Kind(made.run.kind),
        made.why,
        made.run.as_of,
        watermark,
        entities,
        result.written,
        result.kept,
        result.expired,
        made.is_resumed,
    )

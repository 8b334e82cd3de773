"""The units of one run: a bounded number in flight, so that the engine's pool batches all the time; each checkpointed.

A worker takes its next row when the checkpoint of the last one is in the database; checkpoints that wait for each
other go in together. Whatever ends a run - a signal, a lost engine, a later runner - finished units are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from batch.checkpoints import Checkpoint, JobStore, Run
from batch.errors import JobStopped, ModelFault
from batch.reader import Row
from batch.threads import in_thread
from batch.work import Work
from core_engine.contracts import Monotonic
from core_engine.errors import InvalidRequest, Unavailable

Sleep = Callable[[float], Awaitable[None]]
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
MODEL_ATTEMPTS = (
    6  # at one row whose model fails, some 6 s: an engine that was restarted is given its scorers meanwhile
)


@dataclass(frozen=True, slots=True)
class Limits:
    """`concurrency` units in flight; a run gives up when no unit could be finished for `give_up_after_s`."""

    concurrency: int = 32
    give_up_after_s: float = 60.0


class Runner:
    """`rows` are the pages of the input, all of them; units that have a checkpoint are passed over.

    `on_progress` is told how many units of this run are checkpointed.
    """

    def __init__(
        self,
        store: JobStore,
        run: Run,
        rows: Iterator[list[Row]],
        work: Work,
        limits: Limits,
        on_progress: Callable[[int], None] = lambda _: None,
        *,
        clock: Monotonic = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._run = run
        self._rows = rows
        self._work = work
        self._limits = limits
        self._on_progress = on_progress
        self._clock = clock
        self._sleep = sleep
        self._page: list[Row] = []
        self._taking = asyncio.Lock()
        self._pending: list[Checkpoint] = []
        self._recording = asyncio.Lock()
        self._finished_s = clock()
        self.num_recorded = 0

    async def run(self) -> None:
        """Every unit that is left.

        Raises:
            InputFileError: the input broke off. JobTakenOver: a later run has begun.
            JobStopped: the engine or the store stayed away.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(self._limits.concurrency):
                    group.create_task(self._worker(), name=f"unit worker {index}")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # one cause: the others were cancelled by it, or met the same one
        finally:
            if self._pending:  # finished units of workers that were cancelled before they could record them
                await in_thread(self._record)

    async def _worker(self) -> None:
        while (row := await self._take()) is not None:
            checkpoint = await self._finish(row)
            self._finished_s = self._clock()
            await self._keep(checkpoint)

    # -- rows

    async def _take(self) -> Row | None:
        """The next row without a checkpoint; None at the end of the input."""
        async with self._taking:
            if not self._page:
                self._page = await in_thread(self._next_page)
            return self._page.pop(0) if self._page else None

    def _next_page(self) -> list[Row]:
        for page in self._rows:
            done = self._store.done_units(self._run.job_id, page[0].unit, page[-1].unit) if page else set()
            if left := [row for row in page if row.unit not in done]:
                return left
        return []

    # -- one row

    async def _finish(self, row: Row) -> Checkpoint:
        started_s, attempts = self._clock(), 0
        if row.fault is not None:
            return Checkpoint(row.unit, fault=row.fault)
        while True:
            attempts += 1
            try:
                answer = await self._work.answer(row, f"{self._run.job_id}:{row.unit}")
            except InvalidRequest as error:
                return Checkpoint(row.unit, fault=str(error))
            except ModelFault as error:
                if attempts >= MODEL_ATTEMPTS:
                    return Checkpoint(row.unit, fault=f"after {attempts} attempts: {error}")
            except Unavailable as error:
                self._check_patience(error)
            else:
                return Checkpoint(
                    unit=row.unit,
                    entity=answer.entity,
                    value=answer.value,
                    rung=answer.rung,
                    reason=answer.reason,
                    finish_reason=answer.finish_reason,
                    latency_ms=(self._clock() - started_s) * 1e3,
                    batch_size=answer.batch_size,
                )
            await self._sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts - 1, 10)))

    def _check_patience(self, error: Unavailable) -> None:
        waited_s = self._clock() - self._finished_s
        if waited_s >= self._limits.give_up_after_s:
            raise JobStopped(f"no unit could be finished for {waited_s:.0f} s: {error}") from None

    # -- checkpoints

    async def _keep(self, checkpoint: Checkpoint) -> None:
        self._pending.append(checkpoint)
        async with self._recording:
            if self._pending:  # else it went in with another worker's
                await in_thread(self._record)
                self._on_progress(self.num_recorded)

    def _record(self) -> None:
        checkpoints, self._pending = self._pending, []
        self._store.record(self._run, checkpoints)
        self.num_recorded += len(checkpoints)

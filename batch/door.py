"""One job from its first unit to its published generation: begin, units, output, publish. Composition roots call this.

`run_job` may be called again after any end: it does what is left, and nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from batch.checkpoints import JobStore, Run, Status
from batch.errors import JobTakenOver
from batch.job import Job
from batch.output import write_output
from batch.publish import publish
from batch.reader import read_rows
from batch.runner import Limits, Runner
from batch.threads import in_thread
from batch.work import Work
from core_engine.errors import HeadraceError, InvalidRequest
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import PredictionStore

log = structlog.get_logger(__name__)

OnProgress = Callable[[int], None]  # units checkpointed by this run


@dataclass(frozen=True, slots=True)
class Parts:
    """What a job needs of its surroundings, built by a composition root."""

    store: JobStore
    work: Work
    predictions: PredictionStore
    reader: OnlinePredictionReader
    limits: Limits = field(default_factory=Limits)


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A finished job. `n` good units of all its runs with their latencies; `batch_sizes` counts units by the rows or
    sequences that shared their device call; `resumed` units were found done by this run, `computed` were done by it."""

    job: str
    predictor: str
    version: int
    n: int
    bad: int
    entities: int
    computed: int
    resumed: int
    p50_ms: float
    p99_ms: float
    batch_sizes: dict[str, int]
    rungs: dict[str, int]
    concurrency: int
    generation: str | None
    results: str
    errors: str


async def run_job(parts: Parts, job: Job, on_progress: OnProgress = lambda _: None) -> JobReport:
    """Run or resume `job`.

    Raises:
        HeadraceError: one sentence; all but a wrong request leave the job resumable.
    """
    if job.publish:
        await parts.predictions.pointer(
            job.predictor.id
        )  # a store that is away is said now, not after the night's work
    run = await in_thread(lambda: parts.store.begin(job))
    found = await in_thread(lambda: parts.store.num_done(job.id))
    log.info("batch_job_begins", job=job.id, fence=run.fence, status=str(run.status), units_done=found)
    computed = 0
    try:
        if run.status is not Status.DONE:
            await parts.work.ready()
            runner = Runner(parts.store, run, read_rows(job.input), parts.work, parts.limits, on_progress)
            try:
                await runner.run()
            finally:
                computed = runner.num_recorded
        await _settle(parts.store, run, job)
    except asyncio.CancelledError:
        await _end(parts.store, run, Status.INTERRUPTED, None)
        raise
    except HeadraceError as error:
        await _end(parts.store, run, Status.STOPPED, str(error))
        raise
    generation = await publish(parts.store, run, job, parts.predictions, parts.reader) if job.publish else None
    return await _report(parts, job, computed, found, generation)


async def _settle(store: JobStore, run: Run, job: Job) -> None:
    """Write the output and call the job done. A job of bad rows only is not."""
    tally = await in_thread(lambda: store.tally(job.id))
    await in_thread(lambda: store.check(run))
    await in_thread(lambda: write_output(store, run, job))
    if tally.good == 0:
        first = await in_thread(lambda: next(store.pages(job.id, bad=True), []))
        why = f"the first of its {tally.bad} bad rows: {first[0].fault}" if first else "it has no rows"
        raise InvalidRequest(f"input file {job.input} gives no result; {why}", field="input", value=str(job.input))
    await in_thread(lambda: store.end(run, Status.DONE))


async def _end(store: JobStore, run: Run, status: Status, detail: str | None) -> None:
    try:
        await in_thread(lambda: store.end(run, status, detail))
    except JobTakenOver:  # how a run ended that is no longer the job's own is nobody's business
        log.info("batch_run_outlived", job=run.job_id, fence=run.fence)


async def _report(parts: Parts, job: Job, computed: int, found: int, generation: str | None) -> JobReport:
    tally = await in_thread(lambda: parts.store.tally(job.id))
    return JobReport(
        job=job.id,
        predictor=job.predictor.name,
        version=job.predictor.version,
        n=tally.good,
        bad=tally.bad,
        entities=tally.entities,
        computed=computed,
        resumed=found,
        p50_ms=tally.p50_ms,
        p99_ms=tally.p99_ms,
        batch_sizes=tally.batch_sizes,
        rungs=tally.rungs,
        concurrency=parts.limits.concurrency,
        generation=generation,
        results=str(job.output / "results.parquet"),
        errors=str(job.output / "errors.jsonl"),
    )

"""Publishes a finished job: a new generation, checked, then one flip. Interrupted anywhere, the old one stays served.

Each attempt writes under a name of its own, so that a half-written generation is never added to; it expires by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from batch.checkpoints import Checkpoint, JobStore, Run
from batch.job import Job
from batch.threads import in_thread
from core_engine.contracts import Deadline
from core_engine.errors import InvalidRequest
from featurestore.generations import GenerationFault, Superseded
from featurestore.prediction_reader import OnlinePredictionReader, PinnedPredictions
from featurestore.predictions import PredictionRow, PredictionStore

READ_BACK_PER_PAGE = 20  # of at most 1,000: every fiftieth prediction is read back, and all of a small job
READ_BACK_S = 5.0


async def publish(
    store: JobStore, run: Run, job: Job, predictions: PredictionStore, reader: OnlinePredictionReader
) -> str:
    """The generation that serves this job's predictions: a new one, or the one that it has published before.

    Raises:
        InvalidRequest: the job has no good unit. Superseded: a newer job has been published.
        StoreUnavailable, GenerationFault: nothing was changed; publish again.
    """
    predictor = job.predictor.id
    held = await predictions.pointer(predictor)
    if held.fence == run.publish_fence:
        await in_thread(lambda: store.published(run, held.generation))
        return held.generation
    if held.fence > run.publish_fence:  # the flip would refuse it anyway; this saves the writing
        raise Superseded(
            f"job {job.id} is older than what {predictor} serves (generation {held.generation}); it is not published"
        )
    tally = await in_thread(lambda: store.tally(job.id))
    if tally.entities == 0:
        raise InvalidRequest(f"job {job.id} has no prediction to publish; its error file says why", field="publish")
    generation = f"{job.id}.{run.fence}"
    await predictions.write(predictor, generation, _rows(store, job.id))
    await predictions.seal(predictor, generation, tally.entities, run.created_at)
    is_distinct = tally.entities == tally.good  # else the last row of an entity is what is stored
    await _read_back(store, job.id, reader.pinned(predictor, generation), is_distinct=is_distinct)
    await in_thread(lambda: store.check(run))
    await predictions.flip(predictor, generation, run.publish_fence)
    await in_thread(lambda: store.published(run, generation))
    return generation


async def _pages(store: JobStore, job_id: str) -> AsyncIterator[list[Checkpoint]]:
    pages: Iterator[list[Checkpoint]] = store.pages(job_id)
    while (page := await in_thread(lambda: next(pages, None))) is not None:
        yield page


async def _rows(store: JobStore, job_id: str) -> AsyncIterator[Sequence[PredictionRow]]:
    async for page in _pages(store, job_id):
        yield [PredictionRow(unit.entity, unit.value) for unit in page if unit.entity is not None]


async def _read_back(store: JobStore, job_id: str, view: PinnedPredictions, *, is_distinct: bool) -> None:
    """Look a sample up as a door would, in the generation that nobody is served from yet."""
    async for page in _pages(store, job_id):
        for unit in page[:: max(1, len(page) // READ_BACK_PER_PAGE)]:
            stored = await view.lookup(unit.entity or "", Deadline.after(READ_BACK_S))
            if stored is None or (is_distinct and stored.value != unit.value):
                raise GenerationFault(
                    f"generation {view.generation} was read back and does not hold what was written for "
                    f"{unit.entity}; it is not published"
                )

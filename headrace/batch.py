"""Composition root of the batch door: builds what one job needs from the settings, runs it, takes it down again.

Called by `headrace batch` and by the demo. The engine and the store are those of the stack that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import structlog
from sqlalchemy import Engine

from batch.checkpoints import JobStore
from batch.door import JobReport, OnProgress, Parts, run_job
from batch.job import Job, JobSpec, read_job_file, resolve
from batch.runner import Limits
from batch.threads import in_thread
from batch.work import Scoring, Work, Writing
from core_engine.costs.spool import Spool
from core_engine.errors import ConfigurationError
from core_engine.llm.client import EngineClient
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.declaration import LMGenerate, LMScore, Predictor, TorchScorer
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import Registry
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.predictions import PredictionStore
from headrace.door import spawn, stop
from headrace.feature_readers import FeatureReaders
from headrace.migrations import upgrade
from headrace.upkeep import RegisteredFeatureReader, ScorerKeeper, repeat
from headrace.wheels import model_file

log = structlog.get_logger(__name__)

TEND_S = 0.25


async def run_batch(settings: Settings, spec: JobSpec, on_progress: OnProgress = lambda _: None) -> JobReport:
    """Run or resume the job that `spec` means. Cancelled, it keeps what is finished and can be run again.

    Raises:
        HeadraceError: one sentence; see `batch.errors` for what leaves the job resumable.
    """
    async with AsyncExitStack() as exits:
        await in_thread(lambda: upgrade(settings.database_url))
        database = open_database(settings.database_url)
        exits.callback(database.dispose)
        job = await in_thread(lambda: resolved(settings, database, spec))
        parts = await exits.enter_async_context(BatchDoor(settings, database, job.predictor).running())
        return await run_job(parts, job, on_progress)


async def batch_command(settings: Settings, spec: JobSpec, say: Callable[[str], None], json_file: Path | None) -> None:
    """`run_batch` for a terminal: each commit of checkpoints is a line of the log, the report the last word."""
    report = await run_batch(settings, spec, lambda num_units: log.info("batch_units", computed=num_units))
    say(as_text(report))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def as_spec(
    job_file: Path | None,
    predictor: str | None,
    input: Path | None,
    output: Path | None,
    job: str | None,
    alias: str,
    *,
    publish: bool,
) -> JobSpec:
    """The job of a file, whose id and publishing may be set beside it, or of options.

    Raises:
        ConfigurationError: neither names one, or the file is broken.
    """
    if job_file is not None:
        spec = read_job_file(job_file)
        return msgspec.structs.replace(spec, job=job or spec.job, publish=publish or spec.publish)
    if predictor is None or input is None or output is None:
        raise ConfigurationError("name a job file, or give --predictor, --input and --output")
    paths = {"input": str(input), "output": str(output)}
    return JobSpec(predictor=predictor, publish=publish, alias=alias, job=job, **paths)


def as_text(report: JobReport) -> str:
    """Every figure beside its concurrency and batch sizes."""
    sizes = ", ".join(f"{size} x{count}" for size, count in report.batch_sizes.items())
    served = f"; published as generation {report.generation}" if report.generation else ""
    return (
        f"job {report.job}: {report.n} predictions and {report.bad} bad rows ({report.computed} rows done now, "
        f"{report.resumed} found done); "
        f"p50 {report.p50_ms:.0f} ms, p99 {report.p99_ms:.0f} ms at concurrency {report.concurrency}, "
        f"batch sizes {sizes}; {report.results}{served}"
    )


def list_jobs(settings: Settings) -> list[tuple[object, ...]]:
    """Id, predictor, status, finished units, generation of every job, the newest first."""
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    try:
        store = JobStore(database)
        return [
            (job.id, f"{job.predictor}:{job.version}", job.status, store.num_done(job.id), job.generation or "-")
            for job in store.jobs()
        ]
    finally:
        database.dispose()


def resolved(settings: Settings, database: Engine, spec: JobSpec) -> Job:
    """The job of `spec` with the version that its alias points at now; the model behind a text is part of what it is.

    Raises:
        UnknownName: no such predictor or alias. InputFileError: the input cannot be read.
    """
    predictor = Registry(database).resolve(spec.predictor, alias=spec.alias)
    model, params = predictor.model, dict[str, str]()
    if isinstance(model, LMGenerate | LMScore):
        params = {"model": settings.engine.model_name, "dtype": settings.engine.weights}
    if isinstance(model, LMGenerate):
        params["sampling"] = "greedy"
    return resolve(spec, predictor, params)


class BatchDoor:
    """The parts of one job, built but not started; `running` starts and stops them."""

    def __init__(self, settings: Settings, database: Engine, predictor: Predictor) -> None:
        self._settings = settings
        self._database = database
        self._predictor = predictor
        self._redis = connect(settings.redis)
        self._client = EngineClient(settings.engine_endpoint, lost_after_s=settings.engine.lost_after_s)
        self._metrics = Metrics()
        self._spool = Spool(settings.spool_dir, "batch", self._metrics)
        self._catalogue = Catalogue(Registry(database))
        self._readers = FeatureReaders(settings, self._redis, self._metrics, "batch")
        self._features = RegisteredFeatureReader(database, self._readers.stacked)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Parts]:
        """Stops in the reverse order of need, the spool last, so that no fact is lost."""
        async with AsyncExitStack() as exits:
            exits.push_async_callback(asyncio.to_thread, self._spool.close)
            exits.push_async_callback(asyncio.to_thread, self._readers.close)
            exits.push_async_callback(self._redis.aclose)
            await self._client.start()
            exits.push_async_callback(self._client.close)
            if isinstance(self._predictor.model, LMGenerate):
                work = await self._writing()
            else:
                work = await self._scoring()
                keeper = ScorerKeeper(
                    self._client, self._catalogue
                )  # an engine that was restarted has lost its scorers
                exits.push_async_callback(stop, spawn("scorers", repeat(keeper.tend, TEND_S)))
            batch = self._settings.batch
            yield Parts(
                store=JobStore(self._database),
                work=work,
                predictions=PredictionStore(self._redis, self._settings.features.retention_s),
                reader=OnlinePredictionReader(self._redis),
                limits=Limits(batch.concurrency, batch.give_up_after_s),
            )

    async def _tokenizer(self) -> Tokenizer:
        return await in_thread(lambda: Tokenizer.from_path(model_file(self._settings.engine)))

    async def _writing(self) -> Work:
        return Writing(self._client, await self._tokenizer(), self._spool, self._predictor, self._engine)

    async def _scoring(self) -> Work:
        await self._catalogue.refresh()
        await self._features.refresh()
        flow = PredictFlow(
            features=self._features,
            engine=self._client,
            rungs=RungCache(),
            spool=self._spool,
            metrics=self._metrics,
            feature_cap_s=self._settings.batch.feature_cap_ms / 1e3,
            tokenizer=await self._tokenizer() if isinstance(self._predictor.model, LMScore) else None,
        )
        return Scoring(flow, self._predictor, self._engine)

    async def _engine(self) -> None:
        """The engine answers and holds the model."""
        await self._client.wait_available(self._settings.batch.engine_wait_s)
        model = self._predictor.model
        if isinstance(model, TorchScorer):
            await self._client.load_scorer(self._predictor.id, model.artifact.path, model.artifact.sha256)

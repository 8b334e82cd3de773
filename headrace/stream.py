"""Composition root of the stream worker: builds every part from the settings, works, and drains on SIGTERM.

Run by `headrace stream run`, and by the demo in its own process. Like the HTTP door it answers with whatever is there:
without an engine from the lower rungs; without Redis it waits, because its windows are there.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.costs.spool import Spool
from core_engine.errors import ConfigurationError, EngineUnavailable
from core_engine.llm.client import EngineClient
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.declaration import LMGenerate, LMScore
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import Registry
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from featurestore.definitions import FeatureView
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from featurestore.registry import load_views
from featurestore.windows.store import WindowStore
from headrace.door import REFRESH_S, spawn, stop
from headrace.feature_readers import FeatureReaders
from headrace.logs import configure_logging
from headrace.migrations import upgrade
from headrace.upkeep import RegisteredFeatureReader, ScorerKeeper, repeat, warm_rungs
from headrace.wheels import model_file
from streaming.dead_letters import DeadLetters, dead_letter_topic
from streaming.kafka_transport import KafkaTransport
from streaming.report import StreamReport
from streaming.window_effects import WindowEffects
from streaming.worker import StreamWorker

log = structlog.get_logger(__name__)

FEATURE_CAP_S = (
    0.5  # nobody waits 50 ms for an event: 15 ms of a loop that scores 32 at once cost a tenth of them theirs
)
ENGINE_S = 5.0  # how long the first event waits for the engine and its scorer; then the lower rungs answer


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What one worker does. `dead_letter_topic` None is `<topic>.dead-letters`; `group` None `headrace-<predictor>`."""

    predictor: str
    topic: str
    output_topic: str
    dead_letter_topic: str | None = None
    group: str | None = None
    stop_after_idle_s: float | None = None

    @property
    def letters(self) -> str:
        return self.dead_letter_topic or dead_letter_topic(self.topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """Everything that must exist before a worker starts."""
        return self.topic, self.output_topic, self.letters


async def serve_stream(settings: Settings, options: StreamOptions) -> StreamReport:
    """`run_stream` as a process of its own: logs as JSON, and drains on SIGTERM or SIGINT."""
    configure_logging(settings.log_level)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return await run_stream(settings, options, stopping)


async def run_stream(settings: Settings, options: StreamOptions, stopping: asyncio.Event | None = None) -> StreamReport:
    """Work until `stopping` is set or nothing has come for `stop_after_idle_s`; returns what was done.

    Raises:
        UnknownName: no such predictor. ConfigurationError: it is no scorer, or a topic does not exist.
        BrokerUnavailable: no broker at the start, or an output that it did not take; nothing is committed past that.
    """
    async with AsyncExitStack() as exits:
        worker = await _worker(settings, options, exits)
        return await worker.run(stopping or asyncio.Event(), options.stop_after_idle_s)


async def _worker(settings: Settings, options: StreamOptions, exits: AsyncExitStack) -> StreamWorker:
    """Everything started, in the order of need; `exits` stops it in the reverse order, the spool last."""
    await asyncio.to_thread(upgrade, settings.database_url)
    database = open_database(settings.database_url)
    exits.callback(database.dispose)
    catalogue = Catalogue(Registry(database), REFRESH_S)
    await catalogue.start()
    exits.push_async_callback(catalogue.close)
    model = catalogue.resolve(options.predictor).model
    if isinstance(model, LMGenerate):
        raise ConfigurationError(f"predictor {options.predictor} generates text; a stream needs one that scores")
    group, letters = options.group or f"headrace-{options.predictor}", options.letters
    transport = KafkaTransport(settings.kafka, options.topic, group, (options.output_topic, letters))
    await transport.start()  # first of what may be away; the group takes seconds to form while the rest is built
    exits.push_async_callback(transport.close)
    metrics = Metrics()
    spool = Spool(settings.spool_dir, "stream", metrics)
    exits.push_async_callback(asyncio.to_thread, spool.close)
    redis = connect(settings.redis)
    exits.push_async_callback(redis.aclose)
    readers = FeatureReaders(settings, redis, metrics, "stream")
    exits.push_async_callback(asyncio.to_thread, readers.close)
    features = RegisteredFeatureReader(database, readers.stacked)
    await features.refresh()
    client = EngineClient(settings.engine_endpoint, lost_after_s=settings.engine.lost_after_s)
    await client.start()
    exits.push_async_callback(client.close)
    rungs = RungCache()
    await warm_rungs(catalogue.view, rungs)
    keeper = ScorerKeeper(client, catalogue)
    await _wait_for_engine(client, keeper)
    for name, work in (
        ("feature views", features.refresh),
        ("rungs", lambda: warm_rungs(catalogue.view, rungs)),
        ("scorers", keeper.tend),
    ):
        exits.push_async_callback(stop, spawn(name, repeat(work, REFRESH_S / 2)))
    views = await asyncio.to_thread(_views, database)
    log.info("stream_serving", topic=options.topic, predictor=options.predictor, group=group)
    return StreamWorker(
        transport=transport,
        flow=PredictFlow(
            features=features,
            engine=client,
            rungs=rungs,
            spool=spool,
            metrics=metrics,
            feature_cap_s=FEATURE_CAP_S,
            predictions=OnlinePredictionReader(redis),
            tokenizer=await asyncio.to_thread(_tokenizer, settings) if isinstance(model, LMScore) else None,
        ),
        predictor=lambda: catalogue.resolve(options.predictor),
        windows=WindowEffects(WindowStore(redis, views, settings.features.retention_s), options.topic, metrics),
        dead_letters=DeadLetters(transport, letters, lambda: datetime.now(UTC)),
        output_topic=options.output_topic,
        metrics=metrics,
        concurrency=settings.kafka.concurrency,
        drain_s=settings.kafka.drain_s,
    )


async def _wait_for_engine(client: EngineClient, keeper: ScorerKeeper) -> None:
    """A backlog would otherwise be answered by the student while the engine says hello."""
    try:
        await client.wait_available(ENGINE_S)
    except EngineUnavailable as error:
        log.warning("engine_not_there", error=str(error))
    else:
        await keeper.tend()


def _views(database: Engine) -> list[FeatureView]:
    """The newest version of each registered view."""
    with Session(database) as session:
        return list({view.name: view for view in load_views(session)}.values())


def _tokenizer(settings: Settings) -> Tokenizer:
    return Tokenizer.from_path(model_file(settings.engine))

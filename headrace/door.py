"""Composition root of the HTTP door: builds every part from the settings, serves, and drains on SIGTERM. With several
workers (`door_workers`), each of them is such a door, with its share of the limits.

It starts and answers with whatever is there: without an engine from the lower rungs, without Redis with features
missing. Only what can never work stops it: a port in use, a broken model file, a malformed URL.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from types import FrameType
from typing import Any

import structlog
import uvicorn
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import Engine

from core_engine.breaker import Breaker
from core_engine.contracts import Deadline
from core_engine.costs.spool import Spool
from core_engine.gradient_limit import GradientLimit
from core_engine.llm.client import EngineClient
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.places import Places
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import Registry, RegistryView
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.shadow import ShadowTraffic
from core_engine.predictors.system_prompt import SystemPrompts
from core_engine.predictors.tables import open_database
from core_engine.settings import PredictLimitSettings, Settings
from featurestore.online.connection import ReadGuard, connect
from featurestore.prediction_reader import OnlinePredictionReader
from headrace.consistency_gauges import ConsistencyGauges
from headrace.door_access import access, is_loopback, worker_share
from headrace.door_protection import protection, show, write_down
from headrace.door_socket import accepting, hold_files, listen, of_worker
from headrace.feature_readers import FeatureReaders
from headrace.heap import settle
from headrace.logs import configure_logging
from headrace.migrations import upgrade
from headrace.tracing import open_tracing
from headrace.upkeep import RegisteredFeatureReader, ScorerKeeper, repeat, warm_rungs
from headrace.wheels import model_file
from online.access.connection import Bounds, bounded_http
from online.app import create_app
from online.loop_lag import LoopLag
from online.services import DoorState, Services

log = structlog.get_logger(__name__)

REFRESH_S = 0.5
WARM_S = 0.3  # how long a version that is new may load before it is used; with the refresh, within a second
GAUGES_S = 60.0  # findings of a day change when somebody computes them
FIGURES_S = 0.5  # how old another worker's figures may be
PING_S = 0.25
SLOW_SHARE = 0.5  # of what a request waits for its features: a read that takes longer counts as a failure


def run_door(settings: Settings, on_serving: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, then drain: `/readyz` turns 503, requests in flight finish within `drain_s`.
    `on_serving` is called when the door takes connections.

    Raises:
        ConfigurationError: the port is in use, or a setting or file cannot work; nothing is left behind.
    """
    configure_logging(settings.log_level)
    is_alone, http = settings.http.workers == 1, worker_share(settings.http)
    with listen(http) if is_alone else of_worker(http) as listener:
        hold_files(http.max_connections)
        door = Door(settings, is_loopback=is_loopback(listener))
        app = create_app(door.services, door.running)
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=bounded_http(Bounds(http, door.cut)),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,  # the drain is over by then; what still runs is cut off
        )
        server = DrainingServer(config, door.services.state, http.drain_s, on_serving=on_serving)
        server.run(sockets=accepting(listener))


class Door:
    """Every part of one HTTP process, built but not started; `running` starts and stops them. One of several workers
    has its share of every limit, and its page of metrics shows what all of them have counted."""

    def __init__(self, settings: Settings, *, is_loopback: bool) -> None:
        upgrade(settings.database_url)
        self._settings = settings
        self._database: Engine = open_database(settings.database_url)
        self._access = access(settings, self._database, is_loopback=is_loopback)
        store_breaker, cap_s = Breaker(), settings.features.cap_ms / 1e3
        places = Places(predict_limit(settings.predict_limit))
        self._redis = connect(settings.redis, guard=ReadGuard(store_breaker, SLOW_SHARE * cap_s))
        self._rungs = RungCache()
        self._catalogue = Catalogue(Registry(self._database), REFRESH_S, self._warm)
        is_alone = settings.http.workers == 1
        metrics = Metrics(None if is_alone else settings.worker_metrics_dir)
        self._client = EngineClient(
            settings.engine_endpoint, lost_after_s=settings.engine.lost_after_s, on_refused=metrics.refused
        )
        self._readers = FeatureReaders(settings, self._redis, metrics, "door")
        self._features = RegisteredFeatureReader(self._database, self._readers.stacked)
        self._gauges = ConsistencyGauges(self._database)
        metrics.page.register(self._gauges)
        predictions = OnlinePredictionReader(self._redis)
        tokenizer = Tokenizer.from_path(model_file(settings.engine))
        self._spool = Spool(settings.spool_dir, "door", metrics)
        self._tracing = open_tracing(settings.tracing, "door", metrics)
        flow = PredictFlow(
            features=self._features,
            engine=self._client,
            rungs=self._rungs,
            spool=self._spool,
            metrics=metrics,
            feature_cap_s=cap_s,
            predictions=predictions,
            tokenizer=tokenizer,
            places=places,
            quotas=self._access.gate.quotas,
        )
        self._figures = protection(metrics, flow, places, store_breaker)
        (show if is_alone else write_down)(self._figures)
        self._lag = LoopLag()
        self._shadow = ShadowTraffic(
            flow=flow,
            catalogue=self._catalogue,
            spool=self._spool,
            metrics=metrics,
            is_near_limit=lambda: self._lag.is_near_limit or 2 * places.in_flight > places.limit.value,
        )
        self.services = Services(
            http=worker_share(settings.http),
            model_name=settings.engine.model_name,
            catalogue=self._catalogue,
            flow=flow,
            predictions=predictions,
            shadow=self._shadow,
            client=self._client,
            tokenizer=tokenizer,
            system_prompts=SystemPrompts(tokenizer),
            spool=self._spool,
            metrics=metrics,
            ping_store=lambda: answers(self._redis),
            gate=self._access.gate,
            tracer=self._tracing.tracer,
        )

    async def _warm(self, view: RegistryView) -> None:
        """Before a view is used, what its versions need here: no request then pays for a version that is new."""
        await warm_rungs(view, self._rungs, Deadline.after(WARM_S))

    async def _write_figures(self) -> None:
        write_down(self._figures)

    def cut(self, reason: str) -> None:
        """A connection was ended, and why."""
        self.services.metrics.connections_cut.labels(reason).inc()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start in the order of need; stop in the reverse order, the spool last, so that no fact is lost."""
        async with AsyncExitStack() as exits:
            exits.push_async_callback(asyncio.to_thread, self._database.dispose)
            exits.push_async_callback(asyncio.to_thread, self._spool.close)
            exits.push_async_callback(asyncio.to_thread, self._tracing.close)
            exits.push_async_callback(asyncio.to_thread, self._readers.close)
            exits.push_async_callback(self._redis.aclose)
            await self._catalogue.start()
            exits.push_async_callback(self._catalogue.close)
            await self._client.start()
            exits.push_async_callback(self._client.close)
            await self._features.refresh()
            await warm_rungs(self._catalogue.view, self._rungs)
            keeper = ScorerKeeper(self._client, self._catalogue)
            for name, work, every_s in (
                ("feature views", self._features.refresh, REFRESH_S / 2),
                ("tenants", self._access.directory.refresh, REFRESH_S / 2),
                ("rungs", lambda: warm_rungs(self._catalogue.view, self._rungs), REFRESH_S / 2),
                ("scorers", keeper.tend, REFRESH_S / 2),
                ("consistency", self._gauges.refresh, GAUGES_S),
            ):
                exits.push_async_callback(stop, spawn(name, repeat(work, every_s)))
            if self._settings.http.workers > 1:
                exits.push_async_callback(stop, spawn("figures", repeat(self._write_figures, FIGURES_S)))
            for name, loop in (("loop lag", self._lag.measure()), ("shadow", self._shadow.run())):
                exits.push_async_callback(stop, spawn(name, loop))
            settle()
            log.info("door_serving", host=self._settings.http.host, port=self._settings.http.port)
            yield
        log.info("door_stopped")


class DrainingServer(uvicorn.Server):
    """Goes on listening while it drains, so that probes and late callers are told; then shuts down in order."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: DoorState,
        drain_s: float,
        clock: Callable[[], float] = time.monotonic,
        on_serving: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._on_serving = on_serving
        self._state = state
        self._drain_s = drain_s
        self._clock = clock
        self._drained_at_s = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_serving()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one does not wait for requests. Neither kills: the exit status is 0."""
        if self._state.draining:
            self.should_exit = True
        else:
            self._state.draining = True
            self._drained_at_s = self._clock() + self._drain_s

    async def on_tick(self, counter: int) -> bool:
        if self._state.draining and (self._state.in_flight == 0 or self._clock() >= self._drained_at_s):
            self.should_exit = True
        return await super().on_tick(counter)


def predict_limit(limit: PredictLimitSettings) -> GradientLimit:
    return GradientLimit(initial=limit.initial, smallest=limit.least, largest=limit.most, tolerance=limit.tolerance)


async def answers(redis: Redis) -> bool:
    """Whether the store answers a ping in time."""
    try:
        async with asyncio.timeout(PING_S):
            return bool(await redis.ping())
    except (RedisError, OSError, TimeoutError):
        return False


def spawn(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A background task whose end, which nobody expects, is logged when it comes."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background_task_failed", task=task.get_name(), exc_info=error)

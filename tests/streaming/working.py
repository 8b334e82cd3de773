"""A worker with its parts, on a fake or a real transport, and the events that it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
from redis.asyncio import Redis

from core_engine.metrics import Metrics
from core_engine.predictors.declaration import (
    Artifact,
    Column,
    ColumnKind,
    InputField,
    InputKind,
    Predictor,
    TorchScorer,
)
from core_engine.predictors.predict import PredictFlow
from featurestore.definitions import FeatureView
from featurestore.instants import utc_now
from featurestore.online.store import OnlineStore
from featurestore.windows.plan import StoredWindow, WindowPlan
from featurestore.windows.store import WindowStore
from streaming.dead_letters import DeadLetters
from streaming.report import StreamReport
from streaming.transport import Transport
from streaming.window_effects import WindowEffects
from streaming.worker import StreamWorker
from tests.featurestore.windows.oracle import ORIGIN, TILE_S
from tests.streaming.fake_broker import LETTERS, OUTPUT, TOPIC

DAY_S = 86_400.0
PREDICTOR = Predictor(
    name="arrival",
    version=1,
    owner="tests",
    model=TorchScorer(artifact=Artifact(path="none", sha256="none")),
    inputs=(
        InputField(name="origin", kind=InputKind.STRING, max_length=4),
        InputField(name="delay", kind=InputKind.FLOAT, minimum=-60, maximum=1000),
    ),
    columns=(Column(name="delay", kind=ColumnKind.NUMERIC, source="delay"),),
    budget_ms=10_000.0,
)


def event(number: int, seconds: float = 1.0, **changes: Any) -> bytes:
    """A departure from JFK, `number` minutes late."""
    at = (ORIGIN + timedelta(seconds=seconds)).isoformat()
    fields = {"event_id": f"e{number}", "event_time": at, "origin": "JFK", "delay": float(number), "gate": "B7"}
    return msgspec.json.encode({key: value for key, value in (fields | changes).items() if value is not ...})


def make_worker(
    transport: Transport,
    client: Redis,
    view: FeatureView,
    flow: PredictFlow,
    *,
    predictor: Predictor = PREDICTOR,
    output: str = OUTPUT,
    letters: str = LETTERS,
    concurrency: int = 4,
    drain_s: float = 30.0,
    metrics: Metrics | None = None,
) -> StreamWorker:
    metrics = metrics or Metrics()
    assert view.window is not None
    return StreamWorker(
        transport=transport,
        flow=flow,
        predictor=lambda: predictor,
        windows=WindowEffects(WindowStore(client, [view], DAY_S), view.window.topic, metrics),
        dead_letters=DeadLetters(transport, letters, utc_now),
        output_topic=output,
        metrics=metrics,
        concurrency=concurrency,
        drain_s=drain_s,
    )


@asynccontextmanager
async def working(worker: StreamWorker) -> AsyncIterator[asyncio.Task[StreamReport]]:
    """The worker, running; at the end it is asked to stop and waited for, and its errors are the test's."""
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    try:
        yield task
    finally:
        stop.set()
        await task


async def until(reached: Any) -> None:
    """Turn the loop until `reached()`; the test's time limit bounds it."""
    while not reached():  # noqa: ASYNC110  # what is waited for is state that has no event
        await asyncio.sleep(0)


async def window_total(client: Redis, view: FeatureView, upto: datetime, key: str = "JFK") -> list[Any] | None:
    """Mean, share, count and sum of an entity's window at an instant."""
    store, plan = OnlineStore(client, [view], DAY_S), WindowPlan(view)
    for topic in {view.window.topic if view.window else TOPIC}:
        await store.windows.advance(view.name, {f"{topic}/0": upto, f"{topic}/1": upto})
    [stored] = (await store.fetch([(view, key)])).rows
    if stored is None:
        return None
    assert isinstance(stored, StoredWindow)
    row = plan.row_at(stored, round((upto + timedelta(seconds=TILE_S)).timestamp() * 1e6))
    return None if row is None else row.values

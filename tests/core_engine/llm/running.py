"""A tiny engine served in a thread, behind `inproc://` or `ipc://`, and a client on the test's own loop."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import zmq
import zmq.asyncio

from core_engine.costs.facts import RUNNING, DeviceFact, Fact
from core_engine.costs.meter import ReplicaMeter
from core_engine.errors import ModelFileError
from core_engine.llm.client import EngineClient
from core_engine.llm.engine import Engine, SequenceEvent
from core_engine.llm.scorers import Scorer, ScorerHost
from core_engine.llm.server import EngineInfo, EngineServer
from core_engine.tracing import Tracer
from tests.core_engine.llm.tiny import CONFIG, tiny_engine

PATIENCE_S = 60.0  # a bound on hanging, never a measure
LOST_AFTER_S = 30.0  # no test waits for this: however busy the machine is, an engine that lives is not lost


class SumScorer:
    """Scores a row by the sum of its three numbers; notes the batch sizes that it was called with."""

    num_features = 3

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.fails = False

    def score(self, features: np.ndarray) -> np.ndarray:
        if self.fails:
            raise RuntimeError("broken on purpose")
        self.batches.append(len(features))
        return np.asarray(features.sum(axis=1))


def load_for_tests(path: Path, sha256: str) -> Scorer:
    if sha256 != "good":
        raise ModelFileError(f"{path}: the digest differs")
    return SumScorer()


class Served:
    """The parts of a served engine that a test may look into. Look only; the engine's thread owns them."""

    def __init__(
        self, engine: Engine, server: EngineServer, scorer: SumScorer, spooled: list[Fact], thread: threading.Thread
    ) -> None:
        self.engine, self.server, self.scorer, self.spooled = engine, server, scorer, spooled
        self.thread = thread

    @property
    def facts(self) -> list[DeviceFact]:
        """Of the attempts that have left the engine."""
        return [fact for fact in self.spooled if isinstance(fact, DeviceFact) and fact.outcome != RUNNING]


class Gate:
    """Holds an engine's steps back: `steps` more of them pass. The engine's loop turns on meanwhile."""

    def __init__(self, served: Served, steps: int = 0) -> None:
        self.steps = steps
        self._engine, self._step = served.engine, served.engine.step
        served.engine.step = self._gated  # type: ignore[method-assign]

    def _gated(self, between: Callable[[], None] | None = None) -> list[SequenceEvent]:
        if self.steps <= 0:
            self._engine.last_run_s = self._engine.last_free_block_s = 0.0
            return []
        events = self._step(between)
        self.steps -= 1  # after the step: at zero, all of them are over
        return events

    def open(self) -> None:
        self._engine.step = self._step  # type: ignore[method-assign]


@contextmanager
def serve(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    engine: Engine | None = None,
    heartbeat_s: float = 0.02,
    interval_s: float = 0.1,
    lease_s: float = 30.0,
    drain_s: float = 300.0,
    tracer: Tracer | None = None,
) -> Iterator[Served]:
    engine = engine or tiny_engine()
    scorer, hosts, spooled = SumScorer(), ScorerHost(), list[Fact]()
    meter = ReplicaMeter("engine-0", "local", spooled.append, period_s=interval_s)
    hosts.put("sum:1", scorer)
    info = EngineInfo("tiny", CONFIG.max_positions, CONFIG.vocab_size, "float32", heartbeat_s, lease_s, drain_s)
    server = EngineServer(engine, hosts, info, endpoint, load_for_tests, meter, context, tracer)
    thread = threading.Thread(target=server.run, name="engine")
    thread.start()
    assert server.bound.wait(PATIENCE_S), "the engine did not bind"
    try:
        yield Served(engine, server, scorer, spooled, thread)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the engine did not stop"


@asynccontextmanager
async def running(
    engine: Engine | None = None, *, lease_s: float = 30.0, drain_s: float = 300.0, tracer: Tracer | None = None
) -> AsyncIterator[tuple[EngineClient, Served]]:
    """A client connected to a tiny engine over inproc."""
    context = zmq.Context()
    endpoint = f"inproc://{uuid.uuid4().hex}"
    try:
        with serve(context, endpoint, engine, lease_s=lease_s, drain_s=drain_s, tracer=tracer) as served:
            client = EngineClient(endpoint, context=zmq.asyncio.Context(context), lost_after_s=LOST_AFTER_S)
            await client.start()
            try:
                await client.wait_available(PATIENCE_S)
                yield client, served
            finally:
                await client.close()
    finally:
        context.destroy(linger=0)

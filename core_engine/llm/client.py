"""The one way to reach an engine: asyncio over ZeroMQ, used by every door. No torch.

Liveness is heartbeats and, where the transport tells, the connection itself. When an engine is lost, everything that
was in it fails at once with `EngineUnavailable`. The caller's own timer is authoritative: at a request's deadline the
call ends, whatever the engine does. Meanwhile the client renews its lease: an engine that hears nothing of it ends
what it has there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import TypeAlias, TypeVar

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from core_engine.contracts import (
    Deadline,
    GenerateRequest,
    HeadResult,
    Pool,
    ScoreRequest,
    ScoreResult,
    TokenDelta,
)
from core_engine.errors import DeadlineExceeded, EngineRefused, EngineUnavailable, HeadraceError, InvalidRequest
from core_engine.llm import messages as wire
from core_engine.llm.admission import Forecast, Unseen
from core_engine.llm.forecast_margin import ForecastMargin
from core_engine.llm.inbox import Inbox
from core_engine.llm.totals import EngineTotals
from core_engine.llm.translation import error_of, generate_message, score_message

T = TypeVar("T")
Asked: TypeAlias = wire.Generate | wire.Score | wire.LoadScorer | wire.LoadHead  # each is answered under its attempt id
Told: TypeAlias = wire.Event | HeadraceError
TICKS = 10  # of silence, each a tenth of `lost_after_s`
RENEWALS = 10  # of the lease, in the time that it lasts
LOAD_S = 30.0  # how long loading a scorer may take
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class EngineClient:
    """One engine at `endpoint` (`ipc://` or `inproc://`); its heartbeats come from `<endpoint>.hb`.

    `context` must be shared with the engine for `inproc://`. After `lost_after_s` without a heartbeat it is lost.
    `on_refused` is told of every request that was refused here at once: the engine could not have been in time.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        context: zmq.asyncio.Context | None = None,
        lost_after_s: float = 1.0,
        on_refused: Callable[[Pool], None] = lambda _: None,
    ) -> None:
        self._endpoint = endpoint
        self._context = context or zmq.asyncio.Context.instance()
        self._lost_after_s = lost_after_s
        self._inbox: dict[str, Inbox[Told]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._silent_ticks = TICKS  # of this loop, not of a clock: a loop that was held up is not the engine's silence
        self._connected = endpoint.startswith("inproc://")  # inproc has no connection events
        self._incarnation: str | None = None
        self._failure = ""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(wire.ToClient)
        self._heartbeats = msgspec.msgpack.Decoder(wire.Heartbeat)
        self._changed = asyncio.Condition()
        self.welcome: wire.Welcome | None = None
        self.last_welcome: wire.Welcome | None = None  # the same, kept when the engine is lost
        self.snapshot: wire.Snapshot | None = None
        self._seen: tuple[str | None, int] = (None, 0)  # whose snapshot that is, and its `read_ns`
        self.totals = EngineTotals()
        self.on_refused = on_refused
        self._unseen = Unseen()
        self._margins = {pool: ForecastMargin() for pool in Pool}  # of heads: their forecast guesses no length

    @property
    def available(self) -> bool:
        """Whether new work may be sent: the engine is there and does not drain."""
        return self._is_there and not self._is_draining

    @property
    def _is_there(self) -> bool:
        """Heartbeats arrive and the engine has said what it is."""
        return self._silent_ticks < TICKS and self._connected and self.welcome is not None

    @property
    def _is_draining(self) -> bool:
        return self.snapshot is not None and self.snapshot.is_draining

    async def start(self) -> None:
        """Connect. Returns at once: whether an engine is there is told by `available`."""
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for an engine that is not there
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        self._subscriber = self._context.socket(zmq.SUB)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        self._subscriber.setsockopt(zmq.RECONNECT_IVL, 50)
        self._subscriber.setsockopt(zmq.CONFLATE, 1)  # only the newest heartbeat tells anything
        self._subscriber.setsockopt(zmq.LINGER, 0)
        self._monitor = self._dealer.get_monitor_socket(EVENTS)
        self._dealer.connect(self._endpoint)
        self._subscriber.connect(self._endpoint + ".hb")
        watching = (self._watch_connection(), self._watch_silence())
        loops = (self._read_frames(), self._read_heartbeats(), self._renew_lease(), *watching)
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for task in self._tasks:
            task.add_done_callback(self._loop_ended)

    async def close(self) -> None:
        """Fail what is in flight and let go of the sockets."""
        self._lose("the engine client was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._dealer.closed:
            self._dealer.disable_monitor()
        for socket in (self._monitor, self._dealer, self._subscriber):
            socket.close(linger=0)

    async def wait_available(self, timeout_s: float) -> None:
        """Return once the engine answers. Raises `EngineUnavailable` after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.available)
        except TimeoutError:
            raise EngineUnavailable(f"no engine at {self._endpoint} after {timeout_s:g} s") from None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of one generation, the last with its finish reason and usage. Closing the generator aborts it.

        Raises:
            EngineUnavailable: no engine, or it was lost with the request in it.
            EngineRefused: its queue is full, or it is predicted not to finish in time (see `admission`).
            DeadlineExceeded: the deadline came first. InvalidRequest: the engine cannot run this request as it is.
        """
        self._admit(request)
        self._open(request.attempt_id)
        ended = False
        try:
            await self._send(generate_message(request))
            while not ended:
                event = await self._next(request.attempt_id, request.deadline, wire.Delta)
                ended = event.finish_reason is not None
                yield TokenDelta(
                    event.token_ids,
                    event.finish_reason,
                    event.usage,
                    event.detail,
                    event.logprobs,
                    event.prompt_logprobs,
                )
        finally:
            self._close_attempt(request.attempt_id, abort=not ended)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Scores of `request.num_rows` rows by a scorer held by the engine; raises what `generate` raises."""
        event = await self._call(score_message(request), request.deadline, wire.Scored)
        return ScoreResult(event.scores, event.queue_s, event.model_s, event.usage)

    async def head(self, request: GenerateRequest) -> HeadResult:
        """What `request.head` gives of its prompt; raises what `generate` raises, `UnknownName` for a head not held."""
        assert request.head is not None, "a request without a head is for `generate`"
        margin = self._margins[request.pool]
        forecast = self._admit(request, margin.value_s)
        started_s, left_s = time.monotonic(), request.deadline.remaining()
        try:
            event = await self._call(generate_message(request), request.deadline, wire.HeadDone)
        except DeadlineExceeded:
            if forecast is not None:  # given up early or not, its answer would have come later than that
                margin.observe(max(left_s, time.monotonic() - started_s) - forecast.finish_s)
            raise
        if forecast is not None:
            margin.observe(time.monotonic() - started_s - forecast.finish_s)
        return HeadResult(event.values, event.queue_s, event.model_s, event.usage)

    async def load_head(self, head: str, path: str, sha256: str) -> None:
        """Have the engine hold a linear head for `classify`; as `load_scorer` does a scorer."""
        message = wire.LoadHead(f"load-{head}-{time.monotonic_ns()}", head, path, sha256)
        await self._call(message, Deadline.after(LOAD_S), wire.Loaded)

    async def load_scorer(self, scorer: str, path: str, sha256: str) -> None:
        """Have the engine load a scorer from a file on its host; one that it holds already is left as it is.

        Raises:
            ModelFileError: the file is absent, damaged, or not what `sha256` says.
        """
        message = wire.LoadScorer(f"load-{scorer}-{time.monotonic_ns()}", scorer, path, sha256)
        await self._call(message, Deadline.after(LOAD_S), wire.Loaded)

    # -- one attempt

    async def _call(self, message: Asked, deadline: Deadline, kind: type[T]) -> T:
        self._open(message.attempt_id)
        ended = False
        try:
            await self._send(message)
            event = await self._next(message.attempt_id, deadline, kind)
            ended = True
            return event
        finally:
            self._close_attempt(message.attempt_id, abort=not ended)

    def _admit(self, request: GenerateRequest, margin_s: float = 0.0) -> Forecast | None:
        """Refuse at once what cannot be in time; keep what is sent in mind until a snapshot shows it."""
        if self.snapshot is None or not self.available:
            return None  # `_open` says why
        try:
            return self._unseen.admit(request, self.snapshot, time.monotonic_ns(), margin_s)
        except EngineRefused:
            self.on_refused(request.pool)
            raise

    def _open(self, attempt_id: str) -> None:
        if not self._is_there:
            raise EngineUnavailable(f"no engine answers at {self._endpoint}{self._failure}")
        if self._is_draining:
            raise EngineUnavailable(f"the engine at {self._endpoint} is draining")
        if attempt_id in self._inbox:
            raise InvalidRequest("an attempt with this id is in flight", field="attempt_id", value=attempt_id)
        self._inbox[attempt_id] = Inbox()

    async def _send(self, message: Asked) -> None:
        try:
            await self._dealer.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineUnavailable(f"the engine at {self._endpoint} takes no more messages") from None

    async def _next(self, attempt_id: str, deadline: Deadline, kind: type[T]) -> T:
        event = await _received(self._inbox[attempt_id], deadline)
        if isinstance(event, HeadraceError):
            raise event
        if isinstance(event, wire.Failed):
            raise error_of(event)
        assert isinstance(event, kind), f"the engine answered {attempt_id} with {type(event).__name__}"
        return event

    def _close_attempt(self, attempt_id: str, *, abort: bool) -> None:
        """Forget an attempt; one that the engine may still be working on is aborted there."""
        del self._inbox[attempt_id]
        if abort and self._is_there:
            sent = asyncio.ensure_future(self._dealer.send(self._encoder.encode(wire.Abort(attempt_id)), zmq.NOBLOCK))
            # its result does not matter: an engine that cannot be told finds out by the vanished client
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- the loops

    async def _read_frames(self) -> None:
        while True:
            message = self._decoder.decode(await self._dealer.recv())
            if isinstance(message, wire.Welcome):
                await self._welcomed(message)
                continue
            if self.welcome is not None:  # else: the last words of an engine that is gone
                self._see(message.snapshot)
            for event in message.events:
                inbox = self._inbox.get(event.attempt_id)
                if inbox is not None:  # else: closed by its caller, and aborted
                    inbox.put(event)

    async def _read_heartbeats(self) -> None:
        while True:
            heartbeat = self._heartbeats.decode(await self._subscriber.recv())
            self._silent_ticks = 0
            if heartbeat.incarnation != self._incarnation:
                self._lose("the engine was restarted")
                self._incarnation = heartbeat.incarnation
            self._see(heartbeat.snapshot)
            if self.welcome is None:
                with contextlib.suppress(zmq.Again):  # not connected yet: the next heartbeat asks again
                    await self._dealer.send(self._encoder.encode(wire.Hello()), zmq.NOBLOCK)

    def _see(self, snapshot: wire.Snapshot) -> None:
        """Take a snapshot, unless a newer one is here: heartbeats have a socket of their own, and may be overtaken."""
        seen = (self._incarnation, snapshot.read_ns)
        if seen[0] == self._seen[0] and seen[1] < self._seen[1]:
            return
        self._seen = seen
        self.snapshot = snapshot
        self._unseen.see(snapshot)
        self.totals.see(self._incarnation, snapshot)

    async def _renew_lease(self) -> None:
        renewal = self._encoder.encode(wire.Renew())
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self.welcome is not None)
            lease_s = self.welcome.lease_s if self.welcome else math.inf
            await asyncio.sleep(min(lease_s / RENEWALS, self._lost_after_s))
            if self._is_there:
                with contextlib.suppress(zmq.Again):
                    await self._dealer.send(renewal, zmq.NOBLOCK)

    async def _welcomed(self, welcome: wire.Welcome) -> None:
        if welcome.protocol != wire.PROTOCOL:
            self._failure = f": it speaks protocol {welcome.protocol}, this client {wire.PROTOCOL}"
            return
        async with self._changed:
            self._incarnation, self.welcome, self.last_welcome = welcome.incarnation, welcome, welcome
            self._changed.notify_all()

    async def _watch_connection(self) -> None:
        """A killed engine closes its socket: that is known long before the heartbeats are missed."""
        while True:
            event = await recv_monitor_message(self._monitor)
            async with self._changed:
                self._connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
                self._changed.notify_all()
            if not self._connected:
                self._lose("the connection to the engine was lost")

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(self._lost_after_s / TICKS)
            self._silent_ticks += 1
            if self._silent_ticks == TICKS:
                self._lose(f"no heartbeat from the engine for {self._lost_after_s:g} s")

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """A loop ends only by `close`; one that failed makes this client useless, and it says so."""
        if not task.cancelled() and task.exception() is not None:
            self._connected, self._failure = False, f": the client failed: {task.exception()!r}"
            self._lose(f"the engine client failed: {task.exception()!r}")

    def _lose(self, reason: str) -> None:
        self.welcome = None
        self._unseen.clear()
        for inbox in self._inbox.values():
            inbox.put(EngineUnavailable(reason))


async def _received(inbox: Inbox[Told], deadline: Deadline) -> Told:
    """What comes next, which may be there already. No timer where none can run out: it costs more than all the rest."""
    if not inbox.is_empty or not deadline.is_finite:
        return await inbox.get()
    try:
        async with asyncio.timeout(deadline.remaining()):
            return await inbox.get()
    except TimeoutError:
        raise DeadlineExceeded("no answer from the engine within the deadline") from None

"""The engine's process loop: messages in, one step, frames out. Single-threaded but for the heartbeat.

Each turn: read what has come, answer waiting scorer rows, run one step, send every client one frame. Scorer rows that
come during a step are answered between two layers of the model; everything else waits for the step's end. A client that
has vanished, hangs or takes no more loses its own attempts and nobody else's. A step that fails ends the sequences in
it, and the engine lives on. All of a turn is overhead but for waiting, loading and the model's own runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
import zmq

from core_engine.costs.meter import Capacity, ReplicaMeter, Spent
from core_engine.errors import EngineUnavailable, HeadraceError
from core_engine.llm import messages as wire
from core_engine.llm.attempt_spans import AttemptSpans
from core_engine.llm.attempts import Attempts
from core_engine.llm.delivery import tells_usage, wire_event
from core_engine.llm.engine import Engine, SequenceEvent
from core_engine.llm.heartbeat import HeartbeatThread
from core_engine.llm.leases import Leases
from core_engine.llm.mailbox import Mailbox
from core_engine.llm.messages import AbortReason
from core_engine.llm.scorers import Scorer, ScorerHost
from core_engine.llm.shutdown import Shutdown
from core_engine.llm.translation import failed_message
from core_engine.tracing import Tracer

log = structlog.get_logger()
IDLE_POLL_MS = 50
LINGER_MS = 1000  # for the last frames, where a client reads them
DRAINING = "the engine is draining: it finishes what it holds and takes nothing new"
LoadScorer = Callable[[Path, str], Scorer]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What clients are told, and how long the engine waits for them. `restarts`: by reason, from the supervisor."""

    model: str
    context_tokens: int
    vocab_size: int
    dtype: str
    heartbeat_s: float
    lease_s: float = 5.0
    drain_s: float = 10.0
    replica: str = "engine-0"
    restarts: Mapping[str, int] = field(default_factory=dict)


class EngineServer:
    """Serves one engine and its scorers at `endpoint` until `shutdown` is due."""

    def __init__(
        self,
        engine: Engine,
        scorers: ScorerHost,
        info: EngineInfo,
        endpoint: str,
        load_scorer: LoadScorer,
        meter: ReplicaMeter,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.engine = engine
        self.scorers = scorers
        self.info = info
        self.endpoint = endpoint
        self.incarnation = meter.incarnation
        self.context = context or zmq.Context.instance()
        self.shutdown = Shutdown(info.drain_s, engine.clock)
        self.bound = threading.Event()  # set once clients can connect
        spans = None if tracer is None else AttemptSpans(tracer, info.replica, meter.incarnation, engine.clock)
        self.attempts = Attempts(engine, scorers, meter, info.vocab_size, spans)
        self._load_scorer = load_scorer
        self._meter = meter
        self._leases = Leases(info.lease_s, engine.clock)
        self._deferred: list[tuple[bytes, wire.ToEngine]] = []  # came during a step
        self._is_stuck = False  # the last step ran nothing: do not turn at full speed over it
        self._read_ns = 0
        self.snapshot = self._look()

    def drain(self) -> None:
        """Finish what is there, within `drain_s`, and return from `run`; asked again, do so at once.

        Safe from any thread and from a signal handler, as `stop` is.
        """
        self.shutdown.ask()

    def stop(self) -> None:
        """Return from `run` at once; whatever is in flight is told."""
        self.shutdown.at_once()

    @property
    def busy(self) -> bool:
        return self.engine.has_work or self.scorers.num_rows > 0

    def run(self) -> None:
        """Serve until told to go. Raises `zmq.ZMQError` if the endpoint cannot be bound."""
        mailbox = Mailbox(self.context, self.endpoint)
        heartbeat = HeartbeatThread(self.context, self.endpoint + ".hb", self.info.heartbeat_s, self._heartbeat)
        heartbeat.start()
        self._meter.serves(self._capacity())
        self.bound.set()
        try:
            while not self.shutdown.is_due(has_attempts=len(self.attempts) > 0):
                with self._meter.spend(Spent.OVERHEAD):
                    self._turn(mailbox)
        finally:
            self._end_rest(mailbox)
            self._meter.close_interval(is_last=self.shutdown.is_asked)
            heartbeat.stop()
            mailbox.close(LINGER_MS)

    def _turn(self, mailbox: Mailbox) -> None:
        self._catch_up(mailbox)
        looked_ns = time.monotonic_ns()
        has_mail = self._has_mail(mailbox)
        # without mail it is the look that counts: what has come since its end is not in this turn's snapshot
        self._read_ns = time.monotonic_ns() if has_mail else looked_ns
        if has_mail:
            for client, message in self._receive(mailbox):
                self._take(mailbox, client, message)
        self._end_lapsed(mailbox)
        self._score(mailbox)
        if self.engine.has_work:
            self._step(mailbox)
        self.snapshot = self._look()
        mailbox.flush(self.snapshot)
        self._end_lost(mailbox)
        if self._meter.is_due:
            self.attempts.tell_running()
            self._meter.close_interval()

    def _has_mail(self, mailbox: Mailbox) -> bool:
        """Whether there is a message; waits for one where there is nothing else to do, up to the next deadline."""
        if self.scorers.num_rows > 0 or (self.engine.has_work and not self._is_stuck):
            return mailbox.wait(0)
        with self._meter.spend(Spent.IDLE):
            return mailbox.wait(self._patience_ms())

    def _patience_ms(self) -> int:
        """Whole milliseconds to wait for mail, never past the next expiry: what is left of the last is turned over,
        so that a queued request expires on time: 0.13 ms late (median of 50, two cores under load 8), not 1.1."""
        left_ms = (self.engine.scheduler.next_expiry_s() - self.engine.clock()) * 1e3
        return int(min(max(left_ms, 0.0), IDLE_POLL_MS))

    def _catch_up(self, mailbox: Mailbox) -> None:
        """What had to wait for the end of a step."""
        deferred, self._deferred = self._deferred, []
        for client, message in deferred:
            self._take(mailbox, client, message)

    def _heartbeat(self) -> wire.Heartbeat:
        return wire.Heartbeat(self.incarnation, time.monotonic_ns(), self.busy, self.snapshot)

    # -- messages in

    def _receive(self, mailbox: Mailbox) -> Iterator[tuple[bytes, wire.ToEngine]]:
        for client, message in mailbox.receive():
            self._leases.renew(client)
            yield client, message

    def _between_layers(self, mailbox: Mailbox) -> None:
        """Answer scorer rows at once: one layer is their longest wait, not a step. What touches the plan waits."""
        if not mailbox.wait(0):
            return
        for client, message in self._receive(mailbox):
            if isinstance(message, wire.Score):
                self._submit(mailbox, client, message)
            else:
                self._deferred.append((client, message))
        self._score(mailbox)
        mailbox.flush(self.snapshot)

    def _take(self, mailbox: Mailbox, client: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Renew():
                pass  # as every message, it was noted where it was read
            case wire.Hello():
                mailbox.send(client, self._welcome())
            case wire.Abort(attempt_id):
                self.attempts.abort(client, attempt_id)
            case wire.Generate() | wire.Score() | wire.LoadScorer() | wire.LoadHead():
                self._submit(mailbox, client, message)

    def _submit(
        self, mailbox: Mailbox, client: bytes, message: wire.Generate | wire.Score | wire.LoadScorer | wire.LoadHead
    ) -> None:
        try:
            if self.shutdown.is_draining:
                self.attempts.refuse(message, "draining")
                raise EngineUnavailable(DRAINING)
            if isinstance(message, wire.LoadScorer):
                self._load(message)
                mailbox.put(client, wire.Loaded(message.attempt_id, message.scorer))
            elif isinstance(message, wire.LoadHead):
                with self._meter.spend(Spent.LOADING):
                    self.engine.runner.heads.load(message.head, Path(message.path), message.sha256)
                mailbox.put(client, wire.Loaded(message.attempt_id, message.head))
            else:
                self.attempts.add(client, message)
        except HeadraceError as error:
            mailbox.put(client, failed_message(message.attempt_id, error))

    def _load(self, message: wire.LoadScorer) -> None:
        if message.scorer not in self.scorers.names:
            with self._meter.spend(Spent.LOADING):
                loaded = self._load_scorer(Path(message.path), message.sha256)
            self.scorers.put(message.scorer, loaded)

    # -- work

    def _score(self, mailbox: Mailbox) -> None:
        outcomes = self.scorers.run()
        if run_s := sum(outcome.usage.device_s for outcome in outcomes):
            self._meter.ran(run_s, self.engine.hold(run_s))
        for outcome in outcomes:
            attempt_id, result = outcome.request.attempt_id, outcome.result
            client = self.attempts.scored(outcome)
            if isinstance(result, HeadraceError):
                mailbox.put(client, failed_message(attempt_id, result))
            else:
                mailbox.put(
                    client, wire.Scored(attempt_id, result.scores, result.queue_s, result.model_s, result.usage)
                )

    def _step(self, mailbox: Mailbox) -> None:
        try:
            events = self.engine.step(lambda: self._between_layers(mailbox))
        except Exception as error:  # the engine loop: one bad step must not end everybody's engine
            log.exception("engine_step_failed")
            self._fail_step(mailbox, f"the step failed: {type(error).__name__}")
            return
        finally:
            self._meter.ran(self.engine.last_run_s, self.engine.last_free_block_s)
        self._is_stuck = not events and self.engine.last_run_s == 0
        for event in events:
            self._deliver(mailbox, event)
        for client in self.attempts.clients:
            mailbox.put(client)  # a frame each, if empty: it carries the snapshot, and finds out who has vanished

    def _deliver(self, mailbox: Mailbox, event: SequenceEvent) -> None:
        sequence = event.sequence
        client = self.attempts.owner(sequence.id)
        if client is None:
            return
        usage = self.attempts.usage(sequence) if tells_usage(event) else None
        mailbox.put(client, wire_event(event, usage))
        if event.finish_reason is not None:
            self.attempts.finish(sequence)

    def _fail_step(self, mailbox: Mailbox, reason: str) -> None:
        """End what was in the step, and what the step had ended before it failed."""
        for sequence in self.attempts.in_step():
            client = self.attempts.fail(sequence)
            mailbox.put(client, wire.Failed(sequence.id, HeadraceError.code, reason))

    # -- ends by another hand

    def _end_lapsed(self, mailbox: Mailbox) -> None:
        reason = f"the lease ran out: nothing was heard of this client for {self.info.lease_s:g} s"
        for client in self._leases.lapsed():
            for attempt_id in self._drop(client, AbortReason.LEASE):
                mailbox.put(client, wire.Failed(attempt_id, EngineUnavailable.code, reason))

    def _end_lost(self, mailbox: Mailbox) -> None:
        """Between steps only, wherever it was that a client could not be reached."""
        if lost := mailbox.lost():
            for client, reason in lost.items():
                self._drop(client, reason)
            self.snapshot = self._look()

    def _end_rest(self, mailbox: Mailbox) -> None:
        """Tell everybody whose attempt does not get its end; nothing runs any more."""
        for client in self.attempts.clients:
            for attempt_id in self._drop(client, AbortReason.SHUTDOWN):
                mailbox.put(client, wire.Failed(attempt_id, EngineUnavailable.code, self.shutdown.reason))
        self.snapshot = self._look()
        mailbox.flush(self.snapshot)

    def _drop(self, client: bytes, reason: AbortReason) -> list[str]:
        ended = self.attempts.drop(client, reason)
        if ended:
            log.warning("engine_client_dropped", reason=str(reason), attempts=len(ended))
        return ended

    # -- what is told

    def _look(self) -> wire.Snapshot:
        attempts = self.attempts
        return msgspec.structs.replace(
            self.engine.snapshot(self.scorers.num_rows),
            scoring=attempts.scoring.copy(),
            aborts=dict(attempts.aborts),
            is_draining=self.shutdown.is_draining,
            lost_spans=attempts.lost_spans,
            read_ns=self._read_ns,
        )

    def _capacity(self) -> Capacity:
        scheduler = self.engine.scheduler
        limits = scheduler.limits
        return Capacity(scheduler.blocks.total, limits.interactive.min_seats, limits.bulk.min_seats)

    def _welcome(self) -> wire.Welcome:
        info = self.info
        return wire.Welcome(
            wire.PROTOCOL,
            self.incarnation,
            info.model,
            info.context_tokens,
            info.dtype,
            self.scorers.names,
            info.replica,
            info.lease_s,
            dict(info.restarts),
        )

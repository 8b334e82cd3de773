"""The engine's process loop: messages in, one step, frames out. Single-threaded but for the heartbeat.

Each turn: read what has come, answer waiting scorer rows, run one step, send every client one frame. Scorer rows that
come during a step are answered between two layers of the model; everything else waits for the step's end. A client that
has vanished or takes no more loses its own requests and nobody else's. A step that fails ends the sequences in it, and
the engine lives on. All of a turn is overhead but for waiting, loading and the model's own runs.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
import zmq

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, ScoreRequest
from core_engine.costs.facts import RUNNING
from core_engine.costs.meter import Capacity, ReplicaMeter, Spent
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm import messages as wire
from core_engine.llm.engine import Engine
from core_engine.llm.heartbeat import HeartbeatThread
from core_engine.llm.scorers import Scorer, ScorerHost
from core_engine.llm.sequence import Sequence
from core_engine.llm.validation import check_generate

log = structlog.get_logger()
IDLE_POLL_MS = 50
MAX_UNSENT_FRAMES = 10_000  # per client, before it counts as one that takes no more
LoadScorer = Callable[[Path, str], Scorer]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    model: str
    context_tokens: int
    vocab_size: int
    dtype: str
    heartbeat_s: float


class EngineServer:
    """Serves one engine and its scorers at `endpoint` until `stop` is called."""

    def __init__(
        self,
        engine: Engine,
        scorers: ScorerHost,
        info: EngineInfo,
        endpoint: str,
        load_scorer: LoadScorer,
        meter: ReplicaMeter,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.engine = engine
        self.scorers = scorers
        self.info = info
        self.endpoint = endpoint
        self.incarnation = meter.incarnation
        self._load_scorer = load_scorer
        self._meter = meter
        self._context = context or zmq.Context.instance()
        self._stopping = threading.Event()
        self.bound = threading.Event()  # set once clients can connect
        self._owners: dict[str, bytes] = {}  # attempt id -> client
        self._sequences: dict[str, Sequence] = {}
        self._outbox: dict[bytes, list[wire.Event]] = defaultdict(list)
        self._deferred: list[tuple[bytes, wire.ToEngine]] = []  # came during a step
        self._unreachable: set[bytes] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(wire.ToEngine)
        self.snapshot = engine.snapshot()

    def stop(self) -> None:
        """Ask `run` to return; safe from any thread and from a signal handler."""
        self._stopping.set()

    @property
    def busy(self) -> bool:
        return self.engine.has_work or self.scorers.num_rows > 0

    def run(self) -> None:
        """Serve until stopped. Raises `zmq.ZMQError` if the endpoint cannot be bound."""
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, MAX_UNSENT_FRAMES)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(self.endpoint)
        heartbeat = HeartbeatThread(self._context, self.endpoint + ".hb", self.info.heartbeat_s, self._heartbeat)
        heartbeat.start()
        self._meter.serves(self._capacity())
        self.bound.set()
        try:
            while not self._stopping.is_set():
                with self._meter.spend(Spent.OVERHEAD):
                    self._turn(router)
        finally:
            self._close_meter()
            heartbeat.stop()
            router.close(linger=0)

    def _turn(self, router: zmq.Socket[bytes]) -> None:
        self._catch_up(router)
        if self._has_mail(router):
            for client, message in self._receive(router):
                self._take(router, client, message)
        self._score()
        if self.engine.has_work:
            self._step(router)
        self.snapshot = self.engine.snapshot(self.scorers.num_rows)
        self._send(router)
        if self._meter.is_due:
            self._close_interval()

    def _has_mail(self, router: zmq.Socket[bytes]) -> bool:
        """Whether there is a message; waits a little for one where there is nothing else to do."""
        if self.busy:
            return bool(router.poll(0))
        with self._meter.spend(Spent.IDLE):
            return bool(router.poll(IDLE_POLL_MS))

    def _catch_up(self, router: zmq.Socket[bytes]) -> None:
        """What had to wait for the end of a step."""
        deferred, self._deferred = self._deferred, []
        for client, message in deferred:
            self._take(router, client, message)
        unreachable, self._unreachable = self._unreachable, set()
        for client in unreachable:
            self._drop(client)

    def _heartbeat(self) -> wire.Heartbeat:
        return wire.Heartbeat(self.incarnation, time.monotonic_ns(), self.busy, self.snapshot)

    # -- messages in

    def _receive(self, router: zmq.Socket[bytes]) -> Iterator[tuple[bytes, wire.ToEngine]]:
        """Every message that has come by now, with its client."""
        while True:
            try:
                client, payload = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:  # not two parts
                log.warning("engine_message_refused", error="a message must have one part")
                continue
            try:
                message = self._decoder.decode(payload)
            except (msgspec.DecodeError, ValueError) as error:
                log.warning("engine_message_refused", error=str(error))
                continue
            yield client, message

    def _between_layers(self, router: zmq.Socket[bytes]) -> None:
        """Answer scorer rows at once: one layer is their longest wait, not a step. What touches the plan waits."""
        if not router.poll(0):
            return
        for client, message in self._receive(router):
            if isinstance(message, wire.Score):
                self._submit(client, message)
            else:
                self._deferred.append((client, message))
        self._score()
        self._send(router)

    def _take(self, router: zmq.Socket[bytes], client: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                self._try_send(router, client, self._welcome())
            case wire.Abort(attempt_id):
                self._abort(client, attempt_id)
            case wire.Generate() | wire.Score() | wire.LoadScorer():
                self._submit(client, message)

    def _submit(self, client: bytes, message: wire.Generate | wire.Score | wire.LoadScorer) -> None:
        attempt_id = message.attempt_id
        try:
            if attempt_id in self._owners:
                raise InvalidRequest(f"attempt {attempt_id} is in flight already", field="attempt_id", value=attempt_id)
            match message:
                case wire.Generate():
                    request = _generate_request(message)
                    check_generate(request, self.info.vocab_size)
                    self._sequences[attempt_id] = self.engine.add(request)
                    self._owners[attempt_id] = client
                case wire.Score():
                    self._add_score(message)
                    self._owners[attempt_id] = client
                case wire.LoadScorer():
                    if message.scorer not in self.scorers.names:
                        with self._meter.spend(Spent.LOADING):
                            loaded = self._load_scorer(Path(message.path), message.sha256)
                        self.scorers.put(message.scorer, loaded)
                    self._outbox[client].append(wire.Loaded(attempt_id, message.scorer))
        except HeadraceError as error:
            self._outbox[client].append(wire.Failed(attempt_id, error.code, str(error)))

    def _add_score(self, message: wire.Score) -> None:
        deadline = Deadline.from_wire(message.deadline)
        self.engine.scheduler.guard(message.pool, deadline, self.engine.clock())
        self.scorers.add(
            ScoreRequest(
                message.attempt_id,
                message.scorer,
                message.features,
                message.num_rows,
                deadline,
                message.pool,
                message.tenant,
                message.path,
            )
        )

    def _abort(self, client: bytes, attempt_id: str) -> None:
        """A client's own attempt ends now; one that has ended, or is another's, is left alone."""
        if self._owners.get(attempt_id) != client:
            return
        del self._owners[attempt_id]
        self.scorers.abort(attempt_id)
        sequence = self._sequences.pop(attempt_id, None)
        if sequence is not None:
            self.engine.abort(sequence)
            self._account(sequence)

    # -- work

    def _score(self) -> None:
        outcomes = self.scorers.run()
        if run_s := sum(outcome.usage.device_s for outcome in outcomes):
            self._meter.ran(run_s, self.engine.hold(run_s))
        for outcome in outcomes:
            request = outcome.request
            client = self._owners.pop(request.attempt_id)
            if isinstance(outcome.result, HeadraceError):
                event: wire.Event = wire.Failed(request.attempt_id, outcome.result.code, str(outcome.result))
                self._meter.attempt(request, outcome.usage, outcome.result.code)
            else:
                result = outcome.result
                event = wire.Scored(request.attempt_id, result.scores, result.queue_s, result.model_s, result.usage)
                self._meter.attempt(request, result.usage, "scored")
            self._outbox[client].append(event)

    def _step(self, router: zmq.Socket[bytes]) -> None:
        try:
            events = self.engine.step(lambda: self._between_layers(router))
        except Exception as error:  # the engine loop: one bad step must not end everybody's engine
            log.exception("engine_step_failed")
            self._fail_running(error)
            return
        finally:
            self._meter.ran(self.engine.last_run_s, self.engine.last_free_block_s)
        for event in events:
            sequence = event.sequence
            client = self._owners.get(sequence.id)
            if client is None:
                continue
            self._outbox[client].append(
                wire.Delta(sequence.id, event.token_ids, event.finish_reason, event.usage, detail=None)
            )
            if event.finish_reason is not None:
                self._forget(sequence)
        for client in set(self._owners.values()):
            self._outbox[client]  # a frame each, if empty: it carries the snapshot, and finds out who has vanished

    def _fail_running(self, error: Exception) -> None:
        """End what was in the step, and what the step had ended before it failed."""
        for sequence in [s for s in self._sequences.values() if s.block_table or s.finish_reason is not None]:
            self.engine.abort(sequence)
            sequence.finish_reason = FinishReason.ERROR
            failed = wire.Failed(sequence.id, HeadraceError.code, f"the step failed: {type(error).__name__}")
            self._outbox[self._owners[sequence.id]].append(failed)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        del self._owners[sequence.id]
        del self._sequences[sequence.id]
        self._account(sequence)

    # -- frames out

    def _send(self, router: zmq.Socket[bytes]) -> None:
        outbox, self._outbox = self._outbox, defaultdict(list)
        for client, events in outbox.items():
            if not self._try_send(router, client, wire.Frame(tuple(events), self.snapshot)):
                self._unreachable.add(client)  # dropped at the next turn: a step may be under way

    def _try_send(self, router: zmq.Socket[bytes], client: bytes, message: wire.ToClient) -> bool:
        try:
            router.send_multipart([client, self._encoder.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            log.warning("engine_client_dropped", reason="it takes no more frames")
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            log.warning("engine_client_dropped", reason="it has vanished")
            return False
        return True

    def _drop(self, client: bytes) -> None:
        for attempt_id in [attempt for attempt, owner in self._owners.items() if owner == client]:
            self._abort(client, attempt_id)

    # -- what it cost

    def _capacity(self) -> Capacity:
        scheduler = self.engine.scheduler
        limits = scheduler.limits
        return Capacity(scheduler.blocks.total, limits.interactive.min_seats, limits.bulk.min_seats)

    def _account(self, sequence: Sequence) -> None:
        """The last fact of a sequence that has left."""
        self._meter.attempt(sequence.request, sequence.usage(), sequence.finish_reason or FinishReason.ABORT)

    def _close_interval(self) -> None:
        """What runs on is charged for the interval that ends, so that a killed engine's work has its payer."""
        for sequence in self._sequences.values():
            if sequence.device_s > 0:
                self._meter.attempt(sequence.request, sequence.usage(), RUNNING)
        self._meter.close_interval()

    def _close_meter(self) -> None:
        """Nothing runs any more: whatever was in flight ends here."""
        for sequence in self._sequences.values():
            self.engine.abort(sequence)
            self._account(sequence)
        self._meter.close_interval(is_last=self._stopping.is_set())

    def _welcome(self) -> wire.Welcome:
        info = self.info
        return wire.Welcome(
            wire.PROTOCOL, self.incarnation, info.model, info.context_tokens, info.dtype, self.scorers.names
        )


def _generate_request(message: wire.Generate) -> GenerateRequest:
    return GenerateRequest(
        message.attempt_id,
        message.prompt_token_ids,
        message.sampling,
        Deadline.from_wire(message.deadline),
        message.pool,
        message.tenant,
        message.predictor,
        message.version,
        message.path,
        message.template_tokens,
        message.head,
    )

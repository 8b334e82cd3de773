"""The stream worker: from records to effects, on one event loop. It polls nothing and commits nothing itself.

Per delivery, in order: read and check every event, put all of them into the windows (one round trip), then score them
side by side, one after the other per key. An event is finished when its prediction is acknowledged, or its dead letter
is; only then may its offset be committed. Effects under redelivery:

- windows: exactly once, by coordinates;
- predictions: one key per (topic, partition, offset, predictor name); scored again, they are published again under the
  same key, and the last one holds. Each attempt is a usage fact, grouped by that key into one delivery;
- dead letters: one key per coordinates.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from core_engine.contracts import Deadline, Monotonic, Path, PredictRequest, Scalar
from core_engine.errors import BrokerUnavailable, InvalidRequest
from core_engine.metrics import Metrics
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.inputs import check_inputs, entity_keys
from core_engine.predictors.predict import PredictFlow
from featurestore.windows.batches import WindowEvent
from featurestore.windows.state import Applied
from streaming import dead_letters as letters
from streaming.dead_letters import DeadLetters
from streaming.events import Event, budget_s, effect_key, message_of, parse_event
from streaming.keyed_work import KeyedWork, cancelled
from streaming.report import StreamReport, Tally
from streaming.transport import Delivery, Record, Transport
from streaming.window_effects import WindowEffects

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """An event that was checked: every effect of it can be worked out."""

    record: Record
    event: Event
    predictor: Predictor
    inputs: dict[str, Scalar]
    windows: tuple[WindowEvent, ...]
    at_s: float


class StreamWorker:
    """Scores the events of one transport by the version that `predictor` names at each delivery."""

    def __init__(
        self,
        *,
        transport: Transport,
        flow: PredictFlow,
        predictor: Callable[[], Predictor],
        windows: WindowEffects,
        dead_letters: DeadLetters,
        output_topic: str,
        metrics: Metrics,
        concurrency: int,
        drain_s: float,
        clock: Monotonic = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._transport = transport
        self._flow = flow
        self._predictor = predictor
        self._windows = windows
        self._dead_letters = dead_letters
        self._output_topic = output_topic
        self._metrics = metrics
        self._drain_s = drain_s
        self._clock = clock
        self._now = now
        self._work = KeyedWork(concurrency)
        self._tally = Tally(concurrency)
        self._failure: BrokerUnavailable | None = None
        self._failed = asyncio.Event()

    async def run(self, stop: asyncio.Event, stop_after_idle_s: float | None = None) -> StreamReport:
        """Work until `stop` is set, or nothing has come for `stop_after_idle_s`; what is in flight is finished first,
        within `drain_s`. The transport is started before and closed after by the caller.

        Raises:
            BrokerUnavailable: an output was not taken. Nothing that lacks its output is committed.
        """
        receiving = asyncio.create_task(self._receive(stop_after_idle_s), name="receive")
        waits = (asyncio.create_task(event.wait()) for event in (stop, self._failed))
        ends: list[asyncio.Task[Any]] = [receiving, *waits]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(ends)
            await self._drain()
        if not receiving.cancelled():
            receiving.result()  # raises what ended it
        if self._failure is not None:
            raise self._failure
        return self._tally.report()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(0 if self._failed.is_set() else self._drain_s):
                await self._work.drained()
        except TimeoutError:
            await self._work.cancel()  # not finished, so not committed: delivered again to whoever comes next

    async def _receive(self, stop_after_idle_s: float | None) -> None:
        await self._transport.joined()
        last_s = self._clock()
        while True:
            left_s = None if stop_after_idle_s is None else max(0.0, last_s + stop_after_idle_s - self._clock())
            try:
                async with asyncio.timeout(left_s):
                    delivery = await self._transport.receive()
            except TimeoutError:
                if self._work.is_idle:
                    return
                last_s = self._clock()
                continue
            await self._take(delivery)
            if delivery.records:
                last_s = self._clock()

    # -- one delivery

    async def _take(self, delivery: Delivery) -> None:
        if delivery.at is not None:
            await self._windows.advance(dict.fromkeys(delivery.caught_up, delivery.at))
        at_s, predictor = self._clock(), self._predictor()
        taken = [each for r in delivery.records if (each := await self._accept(r, predictor, at_s)) is not None]
        await self._apply(taken)
        for each in taken:
            self._work.submit(each.record.key, partial(self._score, each))

    async def _accept(self, record: Record, predictor: Predictor, at_s: float) -> Taken | None:
        """The event, checked for everything that will be asked of it; a bad one is buried, and None."""
        reason = letters.MALFORMED
        try:
            event = parse_event(record.value, self._now())
            reason = letters.INVALID
            fields = {field.name: event.fields.get(field.name) for field in predictor.inputs}
            inputs = check_inputs(predictor, fields)
            entity_keys(predictor, inputs)
            return Taken(record, event, predictor, inputs, self._windows.of(record, event), at_s)
        except InvalidRequest as error:
            await self._bury(record, reason, str(error))
        except Exception as error:  # the consumer loop: one event that we cannot read must not stop the others
            log.exception("event_not_read", source=record.coordinates)
            await self._bury(record, letters.FAILED, repr(error))
        return None

    async def _apply(self, taken: Sequence[Taken]) -> None:
        """Everything into the windows, in order, before anything is scored."""
        events = [(each, event) for each in taken for event in each.windows]
        outcomes = await self._windows.apply([event for _, event in events])
        self._tally.applied(outcomes)
        for (each, event), outcome in zip(events, outcomes, strict=True):
            if outcome is Applied.LATE:
                await self._dead_letters.bury(each.record, letters.LATE, f"past the grace of the window {event.view}")
                self._tally.dead_letters[letters.LATE] += 1
        ascending = sorted(taken, key=lambda each: each.event.event_time)
        await self._windows.advance({each.record.partition: each.event.event_time for each in ascending})

    async def _bury(self, record: Record, reason: str, detail: str) -> None:
        await self._dead_letters.bury(record, reason, detail)
        self._transport.finish(record)
        self._tally.dead_letters[reason] += 1
        self._metrics.stream_events.labels(record.partition.topic, reason).inc()

    # -- one event

    async def _score(self, taken: Taken) -> None:
        if not self._transport.is_ours(taken.record):
            self._tally.fenced += 1
            return
        try:
            await self._predict(taken)
        except BrokerUnavailable as error:
            self._fail(error)
        except Exception as error:  # the consumer loop, as above
            log.exception("event_not_scored", source=taken.record.coordinates)
            await self._bury_or_fail(taken.record, repr(error))

    async def _predict(self, taken: Taken) -> None:
        record, predictor, began_s = taken.record, taken.predictor, self._clock()
        key, attempt_id = effect_key(record, predictor.name), uuid.uuid4().hex
        left_s = budget_s(taken.event.event_time, self._now(), predictor.freshness_s, predictor.budget_ms)
        request = PredictRequest(
            predictor=predictor.name,
            inputs=taken.inputs,
            attempt_id=attempt_id,
            deadline=Deadline.after(left_s),
            tenant=predictor.owner,
            path=Path.STREAM,
            delivery_key=key.decode(),
        )
        prediction = await self._flow.predict(predictor, request)
        message = message_of(prediction, record, taken.event, attempt_id, self._now())
        await self._transport.publish(self._output_topic, key, message)
        self._transport.finish(record)
        done_s = self._clock()
        latency_s = done_s - taken.at_s
        self._tally.scored(prediction, latency_s, done_s - began_s)
        self._metrics.stream_events.labels(record.partition.topic, "scored").inc()
        self._metrics.stream_event_latency.labels(predictor.name).observe(latency_s)

    async def _bury_or_fail(self, record: Record, detail: str) -> None:
        try:
            await self._bury(record, letters.FAILED, detail)
        except BrokerUnavailable as error:
            self._fail(error)

    def _fail(self, error: BrokerUnavailable) -> None:
        """Stop: an output could not be written, and nothing may be committed past it."""
        if self._failure is None:
            log.error("output_not_taken", error=str(error))
        self._failure = self._failure or error
        self._failed.set()

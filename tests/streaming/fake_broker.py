"""A broker in this process, for states that a real one cannot be driven into; and a flow that answers as it is told.

The transport is the port's third implementation: the same `OffsetTracker`, logs in lists, and rebalances, losses and
crashes when a test says so.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from core_engine.contracts import Prediction, PredictRequest, Rung, StageTimes, Usage
from core_engine.errors import BrokerUnavailable
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.predict import PredictFlow
from streaming.offsets import OffsetTracker, Partition
from streaming.transport import Delivery, Record

TOPIC, OUTPUT, LETTERS = "departures", "predictions", "departures.dead-letters"


@dataclass
class FakeBroker:
    """Logs and one group. `refused` topics take nothing."""

    logs: dict[Partition, list[tuple[bytes | None, bytes | None]]] = field(default_factory=lambda: defaultdict(list))
    published: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=lambda: defaultdict(list))
    committed: dict[Partition, int] = field(default_factory=lambda: defaultdict(int))
    commits: list[tuple[Partition, int]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def commit(self, offsets: dict[Partition, int]) -> None:
        self.committed |= offsets
        self.commits += offsets.items()

    def keys(self, topic: str) -> list[bytes]:
        return [key for key, _ in self.published[topic]]


class FakeTransport:
    """One member. A `dead` one is a process that was killed: nothing that it does has an effect any more."""

    def __init__(self, broker: FakeBroker, chunk: int = 3) -> None:
        self._broker = broker
        self._chunk = chunk
        self._offsets = OffsetTracker()
        self._position: dict[Partition, int] = {}
        self._wake = asyncio.Event()
        self._told: set[Partition] = set()
        self.dead = False
        self.at: datetime | None = None  # the instant of what is told to be caught up; None tells nothing

    async def start(self) -> None: ...

    async def joined(self) -> None: ...

    async def receive(self) -> Delivery:
        while True:
            await asyncio.sleep(0)
            for partition, position in self._position.items():
                if batch := self._broker.logs[partition][position : position + self._chunk]:
                    self._position[partition] += len(batch)
                    return Delivery(tuple(self._record(partition, position + i, *each) for i, each in enumerate(batch)))
                if self.at is not None and partition not in self._told and not self._offsets.outstanding(partition):
                    self._told.add(partition)
                    return Delivery(caught_up=(partition,), at=self.at)
            await self._wake.wait()
            self._wake.clear()

    def _record(self, partition: Partition, offset: int, key: bytes | None, value: bytes | None) -> Record:
        epoch = self._offsets.take(partition, offset)
        assert epoch is not None
        return Record(partition, offset, epoch, key, value)

    def finish(self, record: Record) -> None:
        if not self.dead:
            self._offsets.finish(record.partition, record.offset, record.epoch)
            self._wake.set()

    def is_ours(self, record: Record) -> bool:
        return self._offsets.holds(record.partition, record.epoch)

    async def publish(self, topic: str, key: bytes, value: bytes) -> None:
        await asyncio.sleep(0)
        if self.dead:
            await asyncio.Event().wait()
        if topic in self._broker.refused:
            raise BrokerUnavailable(f"topic {topic} took no record")
        self._broker.published[topic].append((key, value))

    async def close(self) -> None:
        self.revoke(list(self._position))

    # -- what a group does to a member

    def assign(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._offsets.assign([partition])
            self._position[partition] = self._broker.committed[partition]
        self._told.clear()
        self._wake.set()

    def revoke(self, partitions: Sequence[Partition]) -> None:
        due = self._offsets.revoke(partitions)
        if not self.dead:
            self._broker.commit(due)
        self._forget(partitions)

    def lose(self, partitions: Sequence[Partition]) -> None:
        self._offsets.lose(partitions)
        self._forget(partitions)

    def commit(self) -> None:
        due = self._offsets.committable()
        if not self.dead:
            self._broker.commit(due)
            self._offsets.committed(due, self._offsets.epochs(due))

    def wake(self) -> None:
        self._wake.set()

    def _forget(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._position.pop(partition, None)


class FakeFlow(PredictFlow):
    """Answers with the request's `delay` after `turns` turns of the loop; `held` deliveries wait until they are let go.

    `breaks` are delays at which it raises what nobody expects.
    """

    def __init__(self, turns: int = 0, breaks: frozenset[float] = frozenset()) -> None:
        self.turns = turns
        self.breaks = breaks
        self.held: asyncio.Event | None = None
        self.requests: list[PredictRequest] = []

    async def predict(self, predictor: Predictor, request: PredictRequest) -> Prediction:
        self.requests.append(request)
        delay = request.inputs["delay"]
        assert isinstance(delay, float)
        if self.held is not None:
            await self.held.wait()
        for _ in range(self.turns + int(delay) % 3):
            await asyncio.sleep(0)
        if delay in self.breaks:
            raise RuntimeError("a fault that nobody expects")
        return Prediction(
            predictor=predictor.name,
            version=predictor.version,
            value=delay,
            scores={},
            rung=Rung.MODEL,
            reason=None,
            detail=None,
            feature_states={},
            feature_ages_s={},
            stages=StageTimes(),
            usage=Usage(batch_size=1),
        )

"""One run: requests sent when they are due, and a record of each, whatever became of it.

In an open loop nothing waits for an earlier answer, and every latency counts from the instant at which its request was
due: a server that stalls is charged for everybody that it kept waiting, and so is a generator that was late itself.
In a closed loop, which must be asked for, a request is due when the one before it has been answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.loadgen.connections import ConnectionPool, Failed
from headrace.loadgen.replies import Answer, Clock, Reader

OK = 200


@dataclass(slots=True)
class Record:
    """One request. Instants are of the run's clock; `sent_s` None where no connection was had. `in_flight`: requests
    due and not answered, this one among them, when it was due. `end_s`: when its answer or failure was known."""

    due_s: float
    in_flight: int
    sent_s: float | None = None
    end_s: float = 0.0
    answer: Answer | None = None
    failure: str | None = None


@dataclass(slots=True)
class LoadRun:
    """`requests` are sent in order, and again from the first. `details` has the first failure of each kind in words."""

    requests: Sequence[bytes]
    reader: Callable[[Clock], Reader]
    pool: ConnectionPool
    timeout_s: float
    clock: Clock = time.perf_counter
    start_s: float = 0.0
    in_flight: int = 0
    records: list[Record] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)

    async def open_loop(self, due_s: Iterable[float]) -> None:
        """One request at each of `due_s` (seconds from now, in order); until the last is answered."""
        self.start_s = self.clock()
        async with asyncio.TaskGroup() as tasks:
            for each_s in due_s:
                await asyncio.sleep(max(0.0, self.start_s + each_s - self.clock()))
                tasks.create_task(self._one(self.start_s + each_s))

    async def closed_loop(self, concurrency: int, seconds: float) -> None:
        """`concurrency` requests in flight for `seconds`, then until the last is answered."""
        self.start_s = self.clock()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(self._one_after_the_other(self.start_s + seconds))

    async def _one_after_the_other(self, until_s: float) -> None:
        while (now_s := self.clock()) < until_s:
            await self._one(now_s)

    async def _one(self, due_s: float) -> None:
        request = self.requests[len(self.records) % len(self.requests)]
        self.in_flight += 1
        record = Record(due_s, self.in_flight)
        self.records.append(record)
        reader = self.reader(self.clock)
        try:
            status = await self._exchange(request, reader, record)
            if status != OK:
                raise Failed(f"http_{status}", reader.text())
            record.answer = reader.answer()
        except TimeoutError:
            self._failed(record, Failed("timeout", f"no whole answer within {self.timeout_s:g} s"))
        except Failed as failed:
            self._failed(record, failed)
        finally:
            record.end_s = self.clock()
            self.in_flight -= 1

    async def _exchange(self, request: bytes, reader: Reader, record: Record) -> int:
        async with asyncio.timeout(self.timeout_s), self.pool.connection() as connection:
            record.sent_s = self.clock()
            return await connection.ask(request, reader.feed)

    def _failed(self, record: Record, failed: Failed) -> None:
        record.failure = failed.kind
        self.details.setdefault(failed.kind, str(failed))

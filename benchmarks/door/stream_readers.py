"""The load generator of `benchmarks/http_path.py`: many connections, one request on each, the instant of every event.

`python -m benchmarks.door.stream_readers` takes a `Reading` a line and answers with `Seen`. Streams are read for a
while once all have begun, and then left, as by a client that goes away. It counts events and does not look into them,
so that it takes little of the cores that it shares with the door.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec
import uvloop

from benchmarks.door.line_process import answer
from headrace.heap import settle
from headrace.loadgen.connections import Address, Connection, Failed
from headrace.loadgen.prompts import Prompt
from headrace.loadgen.targets import Generation, chat_target

BEGIN_S: Final = 30.0
LATE_EVERY_S: Final = 0.005
END: Final = b"\n\n"


class Reading(msgspec.Struct, frozen=True):
    """`pids`: whose CPU time is told. `max_tokens` of a reply that is not streamed is its length."""

    url: str
    model: str
    num_streams: int
    pids: dict[str, int]
    max_tokens: int
    seconds: float = 0.0
    warm_up_s: float = 0.0
    stream: bool = True


class Seen(msgspec.Struct, frozen=True):
    """Instants are on the monotonic clock. `events_s`: of each stream, every event. CPU seconds from start to end."""

    start_s: float
    end_s: float
    cpu_s: dict[str, float]
    events_s: list[list[float]]
    late_s: list[float]  # of this process's own loop, every few milliseconds


class EventLog:
    """The instants of one stream's events."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.begun = asyncio.Event()
        self.head = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.head = self.head or data[:300]
        count = (self._tail + data).count(END)
        self._tail = data[-1:] or self._tail
        self.at_s += [now_s] * count
        if count and not self.begun.is_set():
            self.begun.set()


class CpuClocks:
    """CPU seconds, of all threads, of processes by name.

    Source: Linux, clock_getcpuclockid(3); the kernel's encoding of a process in a clock's number.
    """

    def __init__(self, pids: dict[str, int]) -> None:
        self._clocks = {name: (~pid << 3) | 2 for name, pid in pids.items()}

    def read(self) -> dict[str, float]:
        return {name: time.clock_gettime(clock) for name, clock in self._clocks.items()}


async def read(reading: Reading) -> Seen:
    """Raises `Failed` where streams do not begin, or a reply is not good."""
    address = Address.of(reading.url)
    generation = Generation(stream=reading.stream, ignore_eos=True)
    prompt = Prompt("Tell me why flights are late.", reading.max_tokens)
    (request,) = chat_target(reading.model, [prompt], generation).requests(address, {})
    connections = [await _connected(address) for _ in range(reading.num_streams)]
    logs = [EventLog() for _ in connections]
    clocks, late_s = CpuClocks(reading.pids), list[float]()
    measuring = asyncio.create_task(_measure_lateness(late_s))
    cpu_s, start_s = clocks.read(), time.monotonic()
    asking = [asyncio.ensure_future(c.ask(request, log.feed)) for c, log in zip(connections, logs, strict=True)]
    try:
        if reading.stream:
            await _all_begun(logs)
            await asyncio.sleep(reading.warm_up_s)
            late_s.clear()
            cpu_s, start_s = clocks.read(), time.monotonic()
            await asyncio.sleep(reading.seconds)
        else:
            _check(await asyncio.gather(*asking), logs)
        end_s, end_cpu_s = time.monotonic(), clocks.read()
    finally:
        measuring.cancel()
        for connection in connections:
            connection.close()
        await asyncio.gather(*asking, measuring, return_exceptions=True)
    used_s = {name: end_cpu_s[name] - before_s for name, before_s in cpu_s.items()}
    return Seen(start_s, end_s, used_s, [log.at_s for log in logs], late_s)


async def _connected(address: Address) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, address.host, address.port)
    return connection


async def _all_begun(logs: Sequence[EventLog]) -> None:
    try:
        async with asyncio.timeout(BEGIN_S):
            for log in logs:
                await log.begun.wait()
    except TimeoutError:
        told = next(log.head for log in logs if not log.begun.is_set())
        raise Failed("timeout", f"a stream had not begun after {BEGIN_S:g} s; its reply was {told!r}") from None


def _check(statuses: Sequence[int], logs: Sequence[EventLog]) -> None:
    for status, log in zip(statuses, logs, strict=True):
        if status != 200:
            raise Failed(f"http_{status}", repr(log.head))


async def _measure_lateness(late_s: list[float]) -> None:
    while True:
        due_s = time.monotonic() + LATE_EVERY_S
        await asyncio.sleep(LATE_EVERY_S)
        late_s.append(max(0.0, time.monotonic() - due_s))


def main() -> None:
    settle()
    for line in sys.stdin:
        seen = uvloop.run(read(msgspec.json.decode(line, type=Reading)))
        answer(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()

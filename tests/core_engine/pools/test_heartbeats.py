from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from core_engine.llm.messages import Heartbeat, Snapshot
from core_engine.pools.heartbeats import HeartbeatListener


class Beater:
    """The heartbeat socket of an engine, in the test's hand."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind(endpoint + ".hb")

    async def beat(self, incarnation: str, *, step: int = 0, busy: bool = False) -> None:
        beat = Heartbeat(incarnation=incarnation, sent_ns=0, busy=busy, snapshot=Snapshot(step=step))
        await self._socket.send(msgspec.msgpack.encode(beat))

    async def until_ready(self, ready: asyncio.Task[None], incarnation: str) -> None:
        """Beat until the listener has heard it (a subscription takes a moment to arrive)."""
        while not ready.done():
            await self.beat(incarnation)
            await asyncio.wait({ready}, timeout=0.02)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        yield f"ipc://{Path(folder) / 'engine.sock'}"


async def test_ready_means_another_engine_than_the_last_time(endpoint: str) -> None:
    async with HeartbeatListener(endpoint, lost_after_s=1.0) as listener:
        first = asyncio.create_task(listener.ready())
        beater = Beater(endpoint)
        await beater.until_ready(first, "one")
        second = asyncio.create_task(listener.ready())
        heard = listener.last
        while listener.last is heard:  # a late beat of the first engine
            await beater.beat("one")
            await asyncio.sleep(0.01)
        assert not second.done()
        await beater.until_ready(second, "two")
        beater.close()
    assert listener.last is not None
    assert listener.last.incarnation == "two"


async def test_a_long_step_is_not_silence_and_silence_is(endpoint: str) -> None:
    async with HeartbeatListener(endpoint, lost_after_s=0.5) as listener:
        ready = asyncio.create_task(listener.ready())
        beater = Beater(endpoint)
        await beater.until_ready(ready, "one")
        lost = asyncio.create_task(listener.pulse.lost())
        for _ in range(60):  # over twice `lost_after_s` in one step that does not end
            await beater.beat("one", step=7, busy=True)
            await asyncio.sleep(0.02)
        assert not lost.done()
        await lost
        beater.close()


def test_pools_import_without_torch() -> None:
    code = "import sys, core_engine.pools.supervisor, core_engine.pools.heartbeats; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

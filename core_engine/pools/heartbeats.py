"""Listens to an engine's heartbeats: when it is ready, and whether it still lives.

Built by a composition root beside the engine's `ChildSpec`. Heartbeats come from a thread of their own in the engine,
so a long prefill keeps beating and a stopped process does not. Progress (`busy`, `snapshot.step`) is for readers of
`last`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import msgspec
import zmq
import zmq.asyncio

from core_engine.llm.messages import Heartbeat
from core_engine.pools.pulse import Pulse

SUFFIX = ".hb"


class HeartbeatListener:
    """A subscriber to `<endpoint>.hb`, as a context. It may be entered before the engine exists."""

    def __init__(self, endpoint: str, lost_after_s: float) -> None:
        self.pulse = Pulse(lost_after_s)
        self.last: Heartbeat | None = None
        self._endpoint = endpoint + SUFFIX
        self._accepted: str | None = None  # incarnation of the engine that `ready` last returned for
        self._beat = asyncio.Event()  # set and replaced at every heartbeat

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        self._socket.connect(self._endpoint)
        self._task = asyncio.create_task(self._listen(), name="heartbeats")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def ready(self) -> None:
        """Wait for a heartbeat of another engine than at the last call: what a killed one sent does not count."""
        while self.last is None or self.last.incarnation == self._accepted:
            await self._beat.wait()
        self._accepted = self.last.incarnation

    async def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(Heartbeat)
        while True:
            self.last = decoder.decode((await self._socket.recv_multipart())[-1])
            self.pulse.beat()
            self._beat.set()
            self._beat = asyncio.Event()

"""The engine's pulse, on a thread of its own: it goes on through a long step, and stops when the process stops."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import zmq

from core_engine.llm.messages import Heartbeat


class HeartbeatThread:
    """Publishes `beat()` at `endpoint` every `period_s` until stopped."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        period_s: float,
        beat: Callable[[], Heartbeat],
    ) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._period_s = period_s
        self._beat = beat
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its socket."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        while True:
            self._socket.send(encoder.encode(self._beat()), zmq.NOBLOCK)
            if self._stopping.wait(self._period_s):
                self._socket.close(linger=0)
                return

"""The engine's socket: messages in from many clients, frames out. It knows no request and no engine.

Events are gathered per client and leave together, one frame per client with the snapshot. A client that has vanished
or takes no more is remembered until somebody asks; sending never blocks. One thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import structlog
import zmq

from core_engine.llm import messages as wire
from core_engine.llm.messages import AbortReason

log = structlog.get_logger()
MAX_UNSENT_FRAMES = 10_000  # per client, before it counts as one that takes no more


class Mailbox:
    """A ROUTER at `endpoint`, bound at once. Raises `zmq.ZMQError` if the endpoint cannot be bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._router = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.SNDHWM, MAX_UNSENT_FRAMES)
        self._router.setsockopt(zmq.LINGER, 0)
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError:
            self._router.close(linger=0)
            raise
        self._outbox: dict[bytes, list[wire.Event]] = defaultdict(list)
        self._lost: dict[bytes, AbortReason] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(wire.ToEngine)

    def wait(self, timeout_ms: int) -> bool:
        """Whether there is a message; waits at most `timeout_ms` for one."""
        return bool(self._router.poll(timeout_ms))

    def receive(self) -> Iterator[tuple[bytes, wire.ToEngine]]:
        """Every message that has come by now, with its client; what is no message is logged and passed over."""
        while True:
            try:
                client, payload = self._router.recv_multipart(zmq.NOBLOCK)
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

    def put(self, client: bytes, *events: wire.Event) -> None:
        """Events for the next frame to `client`; without any it still gets one: the snapshot, and a sign of life."""
        self._outbox[client].extend(events)

    def flush(self, snapshot: wire.Snapshot) -> None:
        """Send every client its frame."""
        outbox, self._outbox = self._outbox, defaultdict(list)
        for client, events in outbox.items():
            self.send(client, wire.Frame(tuple(events), snapshot))

    def send(self, client: bytes, message: wire.ToClient) -> None:
        """Send now; a client that cannot be reached is among the next `lost`."""
        try:
            self._router.send_multipart([client, self._encoder.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            self._lost[client] = AbortReason.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lost[client] = AbortReason.VANISHED

    def lost(self) -> dict[bytes, AbortReason]:
        """Clients that could not be reached since the last call, and why."""
        lost, self._lost = self._lost, {}
        return lost

    def close(self, linger_ms: int) -> None:
        """Let go of the socket; frames that are on their way have `linger_ms` to leave."""
        self._router.close(linger=linger_ms)

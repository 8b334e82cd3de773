"""An engine that computes nothing: it makes up one token per stream and step, at a steady rate, on the real wire.

`python -m benchmarks.door.fake_engine ENDPOINT` takes a `Pace` a line; waits until as many streams as that names are
there, steps them until none is left, and answers with `Steps`. A step that is late does not move those after it: what
the machine held up comes at once.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import zmq

from benchmarks.door.line_process import answer
from core_engine.contracts import FinishReason, Pool, Usage
from core_engine.llm import messages as wire
from core_engine.llm.heartbeat import HeartbeatThread
from core_engine.llm.mailbox import Mailbox

HEARTBEAT_S: Final = 0.1
IDLE_POLL_MS: Final = 5
CONTEXT_TOKENS: Final = 1 << 20
COUNTERS: Final = wire.Counters(finished=dict.fromkeys(FinishReason, 1))  # as many as a real one sends with each step


class Pace(msgspec.Struct, frozen=True):
    """`token_ids` are what each stream says, over and over."""

    num_streams: int
    tokens_per_s: float
    token_ids: tuple[int, ...]

    @property
    def step_s(self) -> float:
        return self.num_streams / self.tokens_per_s


class Steps(msgspec.Struct, frozen=True):
    """When each step was sent, seconds on the monotonic clock: every stream's token n was in step n."""

    sent_s: tuple[float, ...]


@dataclass(slots=True)
class Stream:
    client: bytes
    prompt_tokens: int
    max_tokens: int
    num_tokens: int = 0


class FakeEngine:
    def __init__(self, endpoint: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._mailbox = Mailbox(context, endpoint)
        self._streams: dict[str, Stream] = {}
        self._parent = os.getppid()
        self._snapshot = wire.Snapshot(
            interactive=wire.PoolLoad(max_seats=1 << 20),
            counters=dict.fromkeys(Pool, COUNTERS),
            max_step_tokens=1 << 20,
        )
        self._heartbeat = HeartbeatThread(context, f"{endpoint}.hb", HEARTBEAT_S, self._beat)
        self._heartbeat.start()

    def close(self) -> None:
        self._heartbeat.stop()
        self._mailbox.close(linger_ms=0)

    def idle(self) -> None:
        """Take messages until there is a line to read."""
        while not select.select([sys.stdin], [], [], 0)[0]:
            self._receive(IDLE_POLL_MS)

    def serve(self, pace: Pace) -> Steps:
        while len(self._streams) < pace.num_streams and not self._is_orphan:
            self._receive(IDLE_POLL_MS)
        sent_s, start_s = list[float](), time.monotonic()
        while self._streams and not self._is_orphan:
            self._wait_until(start_s + len(sent_s) * pace.step_s)
            self._step(pace.token_ids)
            sent_s.append(time.monotonic())
        return Steps(tuple(sent_s))

    @property
    def _is_orphan(self) -> bool:
        """Whether the benchmark was killed: nobody would end the streams."""
        return os.getppid() != self._parent

    def _beat(self) -> wire.Heartbeat:
        return wire.Heartbeat("fake", time.monotonic_ns(), bool(self._streams), self._snapshot)

    def _wait_until(self, due_s: float) -> None:
        self._receive(0)
        while (left_s := due_s - time.monotonic()) > 0:
            if left_s > 1e-3:
                self._receive(int(left_s * 1e3))
            else:
                time.sleep(left_s)

    def _receive(self, timeout_ms: int) -> None:
        if self._mailbox.wait(timeout_ms):
            read_ns = time.monotonic_ns()
            for client, message in self._mailbox.receive():
                self._take(client, message)
            self._snapshot = msgspec.structs.replace(self._snapshot, read_ns=read_ns)

    def _take(self, client: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                welcome = wire.Welcome(wire.PROTOCOL, "fake", "fake", CONTEXT_TOKENS, "none", ())
                self._mailbox.send(client, welcome)
            case wire.Generate(attempt_id, prompt, sampling):
                self._streams[attempt_id] = Stream(client, len(prompt), sampling.max_tokens)
            case wire.Abort(attempt_id):
                self._streams.pop(attempt_id, None)
            case _:
                pass  # leases do not run out here, and nobody asks for a score

    def _step(self, token_ids: Sequence[int]) -> None:
        """One token each; usage with the first and the last, as the real engine tells it."""
        ended = []
        for attempt_id, stream in self._streams.items():
            token = token_ids[stream.num_tokens % len(token_ids)]
            stream.num_tokens += 1
            reason = FinishReason.LENGTH if stream.num_tokens == stream.max_tokens else None
            tells = reason is not None or stream.num_tokens == 1
            usage = Usage(stream.prompt_tokens, completion_tokens=stream.num_tokens) if tells else None
            self._mailbox.put(stream.client, wire.Delta(attempt_id, (token,), reason, usage))
            if reason is not None:
                ended.append(attempt_id)
        self._snapshot = msgspec.structs.replace(self._snapshot, step=self._snapshot.step + 1)
        self._mailbox.flush(self._snapshot)
        for attempt_id in ended:
            del self._streams[attempt_id]


def main() -> None:
    engine = FakeEngine(sys.argv[1])
    try:
        while True:
            engine.idle()
            line = sys.stdin.readline()
            if not line:
                return
            made = engine.serve(msgspec.json.decode(line, type=Pace))
            answer(msgspec.json.encode(made))
    finally:
        engine.close()


if __name__ == "__main__":
    main()

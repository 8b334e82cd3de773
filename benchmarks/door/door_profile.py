"""Where the door's CPU time goes: the real door under a sampler of its own stack, every 4 ms of CPU time.

`python -m benchmarks.door.door_profile FILE` serves as `headrace door` does, samples from a SIGUSR1 on, and writes at
its end how many samples fell into each part. A part is known by the innermost frame that lies in one of its files. What
the loop itself does has no frame: its signals are seen by the first frame after it that looks for them. Awaiting frames
do not when they go on, so that waking a stream's task is seen in its inbox.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from core_engine.settings import load_settings
from headrace.door import run_door

EVERY_S: Final = 0.004
LOOP: Final = "event loop"
PARTS: Final = {
    "zmq/": "ZeroMQ",
    "core_engine/llm/inbox.py": "waking a stream's task",
    "core_engine/llm/text.py": "detokenise, stop strings",
    "core_engine/llm/": "engine client: decode, hand on",
    "online/generation.py": "meters, merging choices",
    "core_engine/metrics.py": "meters, merging choices",
    "prometheus_client/": "meters, merging choices",
    "online/text_reply.py": "JSON of events",
    "online/chat.py": "JSON of events",
    "online/event_stream.py": "JSON of events",
    "starlette/": "ASGI layers",
    "fastapi/": "ASGI layers",
    "online/request_context.py": "ASGI layers",
    "uvicorn/protocols/": "HTTP server, writes to sockets",
    "online/access/connection.py": "HTTP server, writes to sockets",
    "online/": "the rest of the door",
}


class Sampler:
    """Counts samples by part. For the main thread, before a loop is there."""

    def __init__(self) -> None:
        self.samples = Counter[str]()

    def wait(self) -> None:
        """Begin when the process is told to."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._start)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _start(self, _number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        self.samples[part_of(frame)] += 1


def part_of(frame: FrameType | None) -> str:
    """The part that `frame`, the innermost, belongs to."""
    if frame is not None and _just_begun(frame) and _part(frame.f_back) == LOOP:
        return LOOP  # the loop called it, and the time before that call was the loop's
    return _part(frame)


def _part(frame: FrameType | None) -> str:
    while frame is not None:
        name = frame.f_code.co_filename
        for place, part in PARTS.items():
            if place in name:
                return part
        frame = frame.f_back
    return LOOP


def _just_begun(frame: FrameType) -> bool:
    """Whether it has run nothing yet since it was called, or resumed: where the interpreter looks for signals."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "RESUME"


def main() -> None:
    sampler = Sampler()
    sampler.wait()
    try:
        run_door(load_settings())
    finally:
        sampler.stop()
        Path(sys.argv[1]).write_bytes(msgspec.json.encode(dict(sampler.samples)))


if __name__ == "__main__":
    main()

"""The least that a stream can cost in the same libraries: Starlette, uvicorn, events that were encoded beforehand.

`python -m benchmarks.door.bare_stream PORT EVENTS` serves chats that say the events of a file over and over, one per
step to each stream; the path says how many steps there are in a second. No engine, no tokens, no request read.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

HOST = "127.0.0.1"


class Ticker:
    """`step` grows `steps_per_s` times a second until it is stopped; a loop that was held up misses none."""

    def __init__(self, steps_per_s: float) -> None:
        self.step = 0
        self.steps_per_s = steps_per_s
        self._ticked = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def next(self) -> None:
        await self._ticked.wait()

    def stop(self) -> None:
        self._running.cancel()

    async def _run(self) -> None:
        start_s = time.monotonic()
        while True:
            due_s = start_s + (self.step + 1) / self.steps_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self.step = max(self.step + 1, int((time.monotonic() - start_s) * self.steps_per_s))
            self._ticked.set()
            self._ticked = asyncio.Event()


def create_app(events: Sequence[bytes]) -> Starlette:
    ticker: Ticker | None = None

    async def chat(request: Request) -> StreamingResponse:
        nonlocal ticker
        await request.body()
        steps_per_s: float = request.path_params["steps_per_s"]
        if ticker is None or ticker.steps_per_s != steps_per_s:  # one load at a time
            if ticker is not None:
                ticker.stop()
            ticker = Ticker(steps_per_s)
        return StreamingResponse(said(events, ticker), media_type="text/event-stream")

    return Starlette(routes=[Route("/{steps_per_s:float}/v1/chat/completions", chat, methods=["POST"])])


async def said(events: Sequence[bytes], ticker: Ticker) -> AsyncIterator[bytes]:
    at = ticker.step
    while True:
        await ticker.next()
        while at < ticker.step:
            yield events[at % len(events)]
            at += 1


def read_events(path: Path) -> list[bytes]:
    return [event + b"\n\n" for event in path.read_bytes().split(b"\n\n") if event]


def main() -> None:
    app = create_app(read_events(Path(sys.argv[2])))
    uvicorn.run(app, host=HOST, port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning")


if __name__ == "__main__":
    main()

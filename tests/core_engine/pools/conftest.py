"""Real child processes that report to the test over a Unix socket, so that no test waits by the clock."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from core_engine.pools.child import ChildSpec

PRELUDE = """
import os, signal, socket, sys, time
station = socket.socket(socket.AF_UNIX)
station.connect(os.environ["STATION"])
def say(*words): station.sendall((" ".join(map(str, words)) + "\\n").encode())
say("up", os.getpid())
"""
IDLE = PRELUDE + "signal.pause()\n"
CRASHING = PRELUDE + "station.recv(1)\nprint('about to fail', flush=True)\nsys.exit(3)\n"
DEAF = PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('deaf')\nwhile True: signal.pause()\n"
BEATING = PRELUDE + "while True:\n    say('beat')\n    time.sleep(0.01)\n"
POLITE = (
    PRELUDE
    + """
def bye(*_):
    say("bye", os.environ["NAME"])
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
say("listening")
while True: signal.pause()
"""
)


class Station:
    """What the children say. `beats`, where set, takes the beats; all else queues up."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.beats: Callable[[], None] | None = None
        self._newest: asyncio.StreamWriter | None = None
        self._said: asyncio.Queue[list[str]] = asyncio.Queue()

    async def heard(self, word: str) -> str:
        """Wait for a line that starts with `word` (others are skipped); its last word."""
        while True:
            words = await self._said.get()
            if words[0] == word:
                return words[-1]

    async def ready(self) -> None:
        await self.heard("up")
        assert self._newest is not None
        self._newest.write(b"!")  # who crashes does so from here on: before, its end might be known before its start

    async def never(self) -> None:
        await asyncio.Event().wait()

    def spec(self, script: str, name: str = "child", *, env: Mapping[str, str] | None = None) -> ChildSpec:
        """A child that runs `script`; change what differs with `dataclasses.replace`."""
        environ = {**os.environ, "STATION": self.path, "NAME": name, **(env or {})}
        return ChildSpec(name, (sys.executable, "-c", script), environ, self.ready, stop_timeout_s=60.0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._newest = writer
        with suppress(ConnectionError):
            while line := (await reader.readline()).decode().split():
                if line[0] == "beat" and self.beats is not None:
                    self.beats()
                else:
                    self._said.put_nowait(line)
        writer.close()


@pytest.fixture
async def station() -> AsyncIterator[Station]:
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        station = Station(str(Path(folder) / "s"))
        async with await asyncio.start_unix_server(station.serve, station.path):
            yield station


def wait_for_end(pid: int, timeout_s: float = 60.0) -> bool:
    """Whether the process ends within the limit; at once if there is none."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], timeout_s)[0])
    finally:
        os.close(fd)

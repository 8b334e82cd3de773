"""A child process: what it is (`ChildSpec`), and one run of it (`ChildProcess`).

Each run has a session of its own, so that Ctrl-C reaches the parent alone, and dies with its parent (`lifeline`). Its
output goes to a log file. When to start, restart or give up is the supervisor's affair.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from core_engine.pools.pulse import Pulse

LIFELINE = Path(__file__).with_name("lifeline.py")
TAIL_BYTES = 8192
NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to run one child.

    `env` is its whole environment, but that every run is told the restarts before it: variables of `restarts_prefix`
    and a reason in capitals, where there is such a prefix. `ready` returns once the child serves, or raises why it
    never will; it is awaited anew for every run. `pulse`, where given, counts the child as dead when it falls silent.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready: Callable[[], Awaitable[None]]
    restart: bool = True
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 10.0
    pulse: Pulse | None = None
    restarts_prefix: str | None = None

    def environment(self, restarts: Mapping[str, int]) -> dict[str, str]:
        """Of a run that comes after so many restarts by reason."""
        if self.restarts_prefix is None:
            return dict(self.env)
        told = {self.restarts_prefix + reason.upper(): str(count) for reason, count in restarts.items()}
        return {**self.env, **told}


class ChildProcess:
    """One run of a child, from spawn to reaped."""

    def __init__(self, process: Process, log: Path, log_offset: int) -> None:
        self._process = process
        self._log = log
        self._log_offset = log_offset  # where this run's output begins

    @classmethod
    async def spawn(cls, spec: ChildSpec, log: Path, restarts: Mapping[str, int] = NONE) -> ChildProcess:
        """Start a run after so many `restarts` by reason, its output appended to `log`."""
        with log.open("ab") as file:
            offset = file.tell()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(LIFELINE), str(os.getpid()), *spec.argv),
                stdin=DEVNULL,
                stdout=file,
                stderr=STDOUT,
                env=spec.environment(restarts),
                start_new_session=True,
            )
        return cls(process, log, offset)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def was_killed(self) -> bool:
        """Whether it has ended, and by a signal."""
        return self._process.returncode is not None and self._process.returncode < 0

    async def wait(self) -> str:
        """Wait for the end, reap it, and say how it came: "exit status 1", "signal SIGKILL"."""
        code = await self._process.wait()
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    async def stop(self, timeout_s: float) -> str:
        """SIGTERM, then SIGKILL to its whole group after `timeout_s`; returns how it ended, once reaped."""
        if self.is_running:
            self._process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                return await self.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> str:
        """SIGKILL to the run and to whatever it started in its group; a stopped process dies of it too."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return await self.wait()

    def tail(self, max_lines: int = 8) -> list[str]:
        """The last lines that this run wrote."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_offset, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-max_lines:]

"""A door of several processes on one port: starts them, restarts those that die, and ends them all as one.

`headrace door` with `http.workers` above 1 is this supervisor; each worker is a door of its own (`door_worker`) with
its share of the limits. The supervisor holds the port and takes no connection itself. It passes SIGTERM and SIGINT on,
so that every worker drains; workers of a supervisor that is killed die with it (`core_engine.pools.lifeline`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from core_engine.errors import ConfigurationError, HeadraceError
from core_engine.pools.child import LIFELINE
from core_engine.pools.replica import ChildFailed, RestartPolicy
from core_engine.settings import Settings
from core_engine.worker_metrics import VARIABLE, empty_folder, worker_died
from headrace.door_socket import reserve
from headrace.logs import configure_logging

log = structlog.get_logger(__name__)

SERVING = "serving"
FAULT = os.EX_CONFIG  # exit status of a worker whose settings or files can never work
STOP_SPARE_S = 4.0  # over the drain, for a worker to end; less than whoever stops the door gives us


def run_workers(settings: Settings) -> None:
    """Serve with `settings.http.workers` processes until SIGTERM or SIGINT, then drain them all.

    Raises:
        ConfigurationError: the port is in use, or what a worker needs cannot work, while no other serves.
        ChildFailed: no worker comes up, or one did not end in order. No worker is left behind in any case.
    """
    configure_logging(settings.log_level)
    http, folder = settings.http, settings.worker_metrics_dir
    with reserve(http):
        empty_folder(folder)
        command = Command(
            argv=(sys.executable, "-m", "headrace.door_worker"),
            env={**os.environ, VARIABLE: str(folder)},  # read when prometheus_client is imported
            stop_timeout_s=http.drain_s + STOP_SPARE_S,
        )
        asyncio.run(Workers(command, http.workers, lambda pid: worker_died(folder, pid)).run())


@dataclass(frozen=True, slots=True)
class Command:
    """How to run a worker, and how long it may take to end."""

    argv: Sequence[str]
    env: Mapping[str, str]
    stop_timeout_s: float


class Workers:
    """`count` processes, each in a place of its own. `on_end` is told the process id of each that has ended.

    A worker that dies is restarted, after a wait that grows with each death within a minute, for as long as another
    serves: what has worked can work again. While none serves, a fault of the settings ends the whole at once, and
    `policy.max_crashes` deaths do.
    """

    def __init__(
        self, command: Command, count: int, on_end: Callable[[int], None], policy: RestartPolicy | None = None
    ) -> None:
        self._command = command
        self._count = count
        self._on_end = on_end
        self._policy = policy or RestartPolicy()
        self._running: dict[int, Process] = {}
        self._serving: set[int] = set()
        self._stopping = asyncio.Event()
        self._failure: HeadraceError | None = None

    async def run(self) -> None:
        """Until a signal or a failure ends it; raises the failure. Then no worker runs any more."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.drain)
        await asyncio.gather(*(self._keep(place) for place in range(self._count)))
        log.info("workers_stopped")
        if self._failure is not None:
            raise self._failure

    def drain(self) -> None:
        """Have every worker drain and end. Called again, none waits for its requests any longer."""
        if not self._stopping.is_set():
            self._stopping.set()
            asyncio.get_running_loop().call_later(self._command.stop_timeout_s, self._signal_all, signal.SIGKILL)
        self._signal_all(signal.SIGTERM)

    async def _keep(self, place: int) -> None:
        """One worker after another in one place."""
        deaths: deque[float] = deque()
        while not self._stopping.is_set():
            process = await self._start()
            said = await self._listen(process, place)
            code = await process.wait()
            self._ended(process.pid)
            if self._stopping.is_set():
                self._judge(place, code)
                return
            self._note(deaths)
            why = said if code == FAULT else end_of(code)
            if not self._serving and (failure := self._hopeless(place, code, why, len(deaths))) is not None:
                self._fail(failure)
                return
            delay_s = self._policy.delay_s(len(deaths))
            log.warning("worker_lost", place=place, pid=process.pid, reason=why, restart_in_s=delay_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()

    async def _start(self) -> Process:
        """A session of its own, so that Ctrl-C reaches it through us, once."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(LIFELINE), str(os.getpid()), *self._command.argv),
            stdin=DEVNULL,
            stdout=PIPE,
            env=self._command.env,
            start_new_session=True,
        )
        self._running[process.pid] = process
        if self._stopping.is_set():  # told while it was being started
            process.terminate()
        return process

    async def _listen(self, process: Process, place: int) -> str:
        """Hear what a worker reports until it ends; returns its last line, which is why it cannot serve if it does
        not."""
        assert process.stdout is not None
        said = ""
        async for line in process.stdout:
            said = line.decode(errors="replace").strip()
            if said == SERVING:
                self._serving.add(process.pid)
                log.info("worker_serving", place=place, pid=process.pid)
        return said

    def _ended(self, pid: int) -> None:
        del self._running[pid]
        self._serving.discard(pid)
        self._on_end(pid)

    def _note(self, deaths: deque[float]) -> None:
        deaths.append(self._policy.clock())
        while deaths[0] < deaths[-1] - self._policy.window_s:
            deaths.popleft()

    def _hopeless(self, place: int, code: int, why: str, num_deaths: int) -> HeadraceError | None:
        """Why it is of no use to start it again, where no other serves; None where it may be."""
        if code == FAULT:
            return ConfigurationError(why)
        if num_deaths < self._policy.max_crashes:
            return None
        often = f"{num_deaths} times within {self._policy.window_s:g} s"
        return ChildFailed(f"door worker {place} was lost {often} while no other serves; it ended with {why}")

    def _judge(self, place: int, code: int) -> None:
        """The end of a worker that was told to end. SIGTERM ends one only before it serves, or when it is done."""
        if code in (0, -signal.SIGTERM, FAULT):
            return
        log.error("worker_not_ended_in_order", place=place, reason=end_of(code))
        self._failure = self._failure or ChildFailed(f"door worker {place} was to drain and ended with {end_of(code)}")

    def _fail(self, failure: HeadraceError) -> None:
        self._failure = self._failure or failure
        self.drain()

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):  # it has just ended
                process.send_signal(number)


def end_of(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

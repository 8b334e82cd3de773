"""One child through all of its runs: start, watch, restart with backoff, give up, stop.

Built by the supervisor; it holds the policy for one child and knows of no other.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core_engine.contracts import Monotonic
from core_engine.errors import HeadraceError
from core_engine.pools.child import ChildProcess, ChildSpec

log = logging.getLogger(__name__)


class ChildFailed(HeadraceError):
    """A child that could not be started, or is not restarted any more; the message ends with its last log lines."""

    code = "child_failed"


class ChildState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"  # dead, waiting for its next start
    FAILED = "failed"  # dead, and given up
    STOPPED = "stopped"


class RestartReason(enum.StrEnum):
    """Why a run was lost; the label of a metric."""

    EXIT = "exit"  # it ended by itself
    SIGNAL = "signal"  # it was killed
    SILENT = "silent"  # it gave no sign of life, and was killed for that
    NOT_READY = "not_ready"  # it did not come up


@dataclass(frozen=True, slots=True)
class Loss:
    """A run that is no more: why, and in words that follow the child's name."""

    reason: RestartReason
    words: str


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """What is known of a child. `restarts_by` counts runs after the first by what ended the one before; `last_reason`
    says why the last one ended."""

    name: str
    state: ChildState = ChildState.STARTING
    pid: int | None = None
    restarts_by: Mapping[str, int] = field(default_factory=dict)
    last_reason: str | None = None

    @property
    def restarts(self) -> int:
        return sum(self.restarts_by.values())


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Wait `first_s` before a restart, doubled for each further crash within `window_s`, at most `cap_s`; give up at
    `max_crashes` within it."""

    first_s: float = 0.1
    cap_s: float = 5.0
    max_crashes: int = 5
    window_s: float = 60.0
    clock: Monotonic = field(default=time.monotonic, repr=False)

    def delay_s(self, crashes: int) -> float:
        return min(self.cap_s, self.first_s * 2.0 ** (crashes - 1))


class Replica:
    """A child that is kept running. `changed` is called after every change of `status`."""

    def __init__(self, spec: ChildSpec, log_dir: Path, policy: RestartPolicy, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.status = ChildStatus(spec.name)
        self.failure: ChildFailed | None = None
        self.pids: list[int] = []  # of every run so far
        self._log = log_dir / f"{spec.name}.log"
        self._policy = policy
        self._changed = changed
        self._crashes: deque[float] = deque()
        self._run: ChildProcess | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first run; returns when it is ready.

        Raises:
            ChildFailed: it died, was not ready in time, or `ready` said why it never will be.
        """
        self._log.write_bytes(b"")
        obstacle = await self._launch()
        if obstacle is not None:
            self._give_up(obstacle.words)
            raise self._failed(obstacle.words)
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when the child is reaped. A child that was given up stays `failed`."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if self._run is not None:
            await self._run.stop(self.spec.stop_timeout_s)
        if self.status.state is not ChildState.FAILED:
            self._set(state=ChildState.STOPPED, pid=None)

    async def _launch(self) -> Loss | None:
        """Start one run and wait for it: None once it is ready, or what kept it from that, the run killed."""
        run = self._run = await ChildProcess.spawn(self.spec, self._log, self.status.restarts_by)
        self.pids.append(run.pid)
        self._set(state=ChildState.STARTING, pid=run.pid)
        obstacle = await self._obstacle(run)
        if obstacle is None:
            self._set(state=ChildState.READY)
        else:
            await run.kill()
        return obstacle

    async def _obstacle(self, run: ChildProcess) -> Loss | None:
        ready, died = asyncio.ensure_future(self.spec.ready()), asyncio.ensure_future(run.wait())
        try:
            await asyncio.wait({ready, died}, timeout=self.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                return Loss(_end_of(run), f"ended before it was ready ({died.result()})")
            if not ready.done():
                return Loss(RestartReason.NOT_READY, f"was not ready within {self.spec.ready_timeout_s:g} s")
            ready.result()
        except HeadraceError as error:
            return Loss(RestartReason.NOT_READY, f"is not ready: {error}")
        finally:
            await _cancel(ready, died)
        return None

    async def _keep(self) -> None:
        while await self._restart(await self._lost()):
            pass

    async def _lost(self) -> Loss:
        """Wait until the run is lost; it is dead and reaped when this returns why."""
        run, pulse = self._run, self.spec.pulse
        assert run is not None
        died = asyncio.ensure_future(run.wait())
        silent = asyncio.ensure_future(pulse.lost() if pulse else asyncio.Event().wait())
        try:
            await asyncio.wait({died, silent}, return_when=asyncio.FIRST_COMPLETED)
            is_dead = died.done()
        finally:
            await _cancel(died, silent)
        how = await run.kill()  # a silent run, or what a dead one left behind in its group
        if is_dead or not pulse:
            return Loss(_end_of(run), f"ended with {how}")
        return Loss(RestartReason.SILENT, f"gave no sign of life for {pulse.lost_after_s:g} s")

    async def _restart(self, loss: Loss) -> bool:
        """Start runs until one is ready (true) or the child is given up (false)."""
        while self._may_restart(loss.words):
            await asyncio.sleep(self._policy.delay_s(len(self._crashes)))
            restarts = self.status.restarts_by
            self._set(restarts_by={**restarts, loss.reason: restarts.get(loss.reason, 0) + 1})
            obstacle = await self._launch()
            if obstacle is None:
                return True
            loss = obstacle
        return False

    def _may_restart(self, reason: str) -> bool:
        policy = self._policy
        self._crashes.append(policy.clock())
        while self._crashes[0] < self._crashes[-1] - policy.window_s:
            self._crashes.popleft()
        self._set(state=ChildState.DOWN, pid=None, last_reason=reason)
        if not self.spec.restart:
            self._give_up(reason)
        elif len(self._crashes) >= policy.max_crashes:
            self._give_up(
                f"was lost {len(self._crashes)} times within {policy.window_s:g} s and is given up: it {reason}"
            )
        log.warning("%s %s; %s", self.spec.name, reason, "given up" if self.failure else "restarting it")
        return self.failure is None

    def _give_up(self, reason: str) -> None:
        self.failure = self._failed(reason)
        self._set(state=ChildState.FAILED, pid=None, last_reason=reason)

    def _failed(self, what: str) -> ChildFailed:
        lines = self._run.tail() if self._run else []
        said = "\n  ".join(["; it last wrote:", *lines]) if lines else "; it wrote nothing"
        return ChildFailed(f"{self.spec.name} {what} (log: {self._log}){said}")

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)
        self._changed()


def _end_of(run: ChildProcess) -> RestartReason:
    return RestartReason.SIGNAL if run.was_killed else RestartReason.EXIT


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

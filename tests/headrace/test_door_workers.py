"""Workers of one door, as small processes: which are restarted, what ends them all, and that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from core_engine.errors import ConfigurationError
from core_engine.pools.replica import ChildFailed, RestartPolicy
from headrace import door_workers
from headrace.door_workers import Command, Workers

SERVES = """
import os, signal, sys
signals = {signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("serving", flush=True)
print("serving", file=sys.stderr, flush=True)
os._exit(0 if signal.sigwait(signals) == signal.SIGTERM else 5)
"""
DIES_AT_ONCE = "raise SystemExit(7)"
IS_AT_FAULT = "print('port 1 is in use', flush=True); raise SystemExit(78)"
DOES_NOT_END = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("serving", flush=True)
while True:
    signal.pause()
"""
THE_FIRST_SERVES = f"""
import os, sys
try:
    os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
except FileExistsError:
    open(sys.argv[2]).close()  # a fifo, which opens when the one that serves was heard
    {IS_AT_FAULT}
{SERVES}
"""
SUPERVISOR = """
import asyncio, os, sys
from headrace.door_workers import Command, Workers

command = Command((sys.executable, "-c", sys.argv[1]), os.environ, 30.0)
asyncio.run(Workers(command, 2, lambda pid: None).run())
"""
AT_ONCE, NEVER = RestartPolicy(first_s=0.0, max_crashes=3), RestartPolicy(first_s=1e6, cap_s=1e6)
Facts: TypeAlias = dict[str, object]


@dataclass
class Log:
    """In the place of the supervisor's log: what it tells, when it tells it."""

    lines: list[tuple[str, Facts]] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def info(self, event: str, **facts: object) -> None:
        self.lines.append((event, facts))
        self.told.set()

    warning = error = info

    async def until(self, event: str, count: int = 1) -> list[Facts]:
        """The facts of these lines, once there are so many of them."""
        while len(found := [facts for name, facts in self.lines if name == event]) < count:
            self.told.clear()
            await self.told.wait()
        return found


@dataclass
class Running:
    workers: Workers
    done: asyncio.Task[None]
    ended: list[int]
    log: Log

    async def pids(self, count: int) -> list[int]:
        """Of the workers that have served so far, once there are so many."""
        return [int(str(facts["pid"])) for facts in await self.log.until("worker_serving", count)]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(door_workers, "log", made)
    return made


@asynccontextmanager
async def running(
    log: Log,
    code: str,
    *arguments: str,
    count: int = 2,
    policy: RestartPolicy = AT_ONCE,
    stop_timeout_s: float = 60.0,
) -> AsyncIterator[Running]:
    """Workers that run `code`; left, they have all ended, as a test has it or at once."""
    ended: list[int] = []
    command = Command((sys.executable, "-c", code, *arguments), os.environ, stop_timeout_s)
    workers = Workers(command, count, ended.append, policy)
    done = asyncio.create_task(workers.run())
    try:
        yield Running(workers, done, ended, log)
    finally:
        if not done.done():
            workers.drain()
        await asyncio.wait({done})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_passed_on_and_everybody_ends_in_order(log: Log, number: signal.Signals) -> None:
    async with running(log, SERVES) as door:
        pids = await door.pids(2)
        os.kill(os.getpid(), number)
        await door.done
    assert sorted(door.ended) == sorted(pids)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGUSR1, "exit status 5")])
async def test_a_worker_that_dies_is_replaced_and_why_is_told(log: Log, number: signal.Signals, reason: str) -> None:
    async with running(log, SERVES) as door:
        first, second = await door.pids(2)
        os.kill(first, number)
        (lost,) = await log.until("worker_lost")
        third = (await door.pids(3))[-1]
        assert (lost["pid"], lost["reason"]) == (first, reason)
        assert door.ended == [first]
        door.workers.drain()
        await door.done
    assert sorted(door.ended) == sorted([first, second, third])


async def test_a_fault_of_the_settings_ends_them_all_with_its_sentence(log: Log) -> None:
    async with running(log, IS_AT_FAULT) as door:
        with pytest.raises(ConfigurationError, match=r"^port 1 is in use$"):
            await door.done
    assert len(door.ended) == 2


async def test_a_fault_is_told_and_tried_again_while_another_serves(log: Log, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    os.mkfifo(heard)
    async with running(log, THE_FIRST_SERVES, str(tmp_path / "first"), str(heard)) as door:
        await door.pids(1)
        (await asyncio.to_thread(heard.open, "w")).close()
        (lost,) = await log.until("worker_lost")
        assert lost["reason"] == "port 1 is in use"
        door.workers.drain()
        await door.done


async def test_what_never_serves_is_given_up(log: Log) -> None:
    async with running(log, DIES_AT_ONCE, count=1) as door:
        with pytest.raises(ChildFailed, match=r"lost 3 times .* while no other serves; it ended with exit status 7"):
            await door.done
    assert len(door.ended) == 3


async def test_who_does_not_end_is_killed_and_that_is_no_end_in_order(log: Log) -> None:
    async with running(log, DOES_NOT_END, count=1, stop_timeout_s=0.0) as door:
        await door.pids(1)
        door.workers.drain()
        with pytest.raises(ChildFailed, match="was to drain and ended with signal SIGKILL"):
            await door.done


async def test_nothing_is_started_again_once_it_was_told_to_end(log: Log) -> None:
    async with running(log, SERVES, policy=NEVER) as door:
        first, second = await door.pids(2)
        os.kill(first, signal.SIGKILL)
        await log.until("worker_lost")
        door.workers.drain()
        await door.done
    assert door.ended == [first, second]


async def test_told_to_end_while_they_are_being_started_they_end(log: Log) -> None:
    async with running(log, SERVES) as door:
        for _ in range(2):  # the supervisor begins, then each of its workers
            await asyncio.sleep(0)
        door.workers.drain()
        await door.done
    assert len(door.ended) == 2


def test_workers_whose_supervisor_is_killed_end_by_themselves() -> None:
    argv: Sequence[str] = (sys.executable, "-c", SUPERVISOR, SERVES)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stderr is not None
        num_serving = 0
        while num_serving < 2:
            num_serving += supervisor.stderr.readline() == "serving\n"
        supervisor.kill()
        supervisor.stderr.read()  # ends when nobody has the pipe any more
    assert supervisor.returncode == -signal.SIGKILL

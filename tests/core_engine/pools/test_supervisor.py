from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from core_engine.pools.pulse import Pulse
from core_engine.pools.replica import ChildFailed, ChildState, RestartPolicy, RestartReason
from core_engine.pools.supervisor import Supervisor, is_ready_again
from tests.core_engine.pools.conftest import BEATING, CRASHING, DEAF, IDLE, POLITE, PRELUDE, Station, wait_for_end

QUICK = RestartPolicy(first_s=0.001, cap_s=0.01, max_crashes=3)


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with Supervisor(tmp_path, QUICK) as supervisor:
        yield supervisor


def pid_of(supervisor: Supervisor, name: str = "child") -> int:
    pid = supervisor.status(name).pid
    assert pid is not None
    return pid


async def test_a_started_child_is_ready_and_in_a_session_of_its_own(supervisor: Supervisor, station: Station) -> None:
    await supervisor.start(station.spec(IDLE))
    status = supervisor.status("child")
    assert (status.state, status.restarts, status.last_reason) == (ChildState.READY, 0, None)
    assert os.getsid(pid_of(supervisor)) == pid_of(supervisor) != os.getsid(0)


async def test_the_command_keeps_the_process_id_that_the_supervisor_knows(
    supervisor: Supervisor, station: Station
) -> None:
    pids: list[int] = []

    async def ready() -> None:
        pids.append(int(await station.heard("up")))

    await supervisor.start(replace(station.spec(IDLE), ready=ready))
    assert pids == [pid_of(supervisor)]


async def test_a_killed_child_is_restarted(supervisor: Supervisor, station: Station) -> None:
    await supervisor.start(station.spec(IDLE))
    first = pid_of(supervisor)
    os.kill(first, signal.SIGKILL)
    status = await supervisor.until("child", is_ready_again(0))
    assert (status.restarts, status.last_reason) == (1, "ended with signal SIGKILL")
    assert status.restarts_by == {RestartReason.SIGNAL: 1}
    assert status.pid != first


async def test_a_child_that_dies_before_it_is_ready_fails_with_its_last_words(
    supervisor: Supervisor, station: Station
) -> None:
    script = "import sys; print('reading the model'); sys.exit('model file x is broken')"
    with pytest.raises(ChildFailed, match=r"child ended before it was ready \(exit status 1\)") as caught:
        await supervisor.start(station.spec(script))
    assert "model file x is broken" in str(caught.value)
    assert supervisor.status("child").state is ChildState.FAILED


async def test_the_tail_shows_this_run_only(supervisor: Supervisor, station: Station, tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("words of another day\n")
    with pytest.raises(ChildFailed, match="it wrote nothing"):
        await supervisor.start(station.spec("raise SystemExit(1)"))


async def test_a_child_that_is_never_ready_is_killed(supervisor: Supervisor, station: Station) -> None:
    spec = replace(station.spec(IDLE), ready=station.never, ready_timeout_s=0.5)
    with pytest.raises(ChildFailed, match=r"was not ready within 0\.5 s"):
        await supervisor.start(spec)


async def test_what_ready_raises_is_the_failure(supervisor: Supervisor, station: Station) -> None:
    async def refuse() -> None:
        raise ConfigurationError("it speaks another protocol")

    with pytest.raises(ChildFailed, match="child is not ready: it speaks another protocol"):
        await supervisor.start(replace(station.spec(IDLE), ready=refuse))


async def test_a_run_that_does_not_come_up_is_a_restart_of_its_own_kind(
    supervisor: Supervisor, station: Station
) -> None:
    async def refuse() -> None:
        raise ConfigurationError("it speaks another protocol")

    readies = iter((station.ready, refuse, station.ready))
    await supervisor.start(replace(station.spec(IDLE), ready=lambda: next(readies)()))
    os.kill(pid_of(supervisor), signal.SIGKILL)
    status = await supervisor.until("child", is_ready_again(1))
    assert status.restarts_by == {RestartReason.SIGNAL: 1, RestartReason.NOT_READY: 1}


async def test_every_run_is_told_the_restarts_before_it_by_reason(supervisor: Supervisor, station: Station) -> None:
    script = PRELUDE + "say('count', os.environ.get('R__SIGNAL', 'none'))\nsignal.pause()\n"
    counts: list[str] = []

    async def ready() -> None:
        counts.append(await station.heard("count"))

    await supervisor.start(replace(station.spec(script), ready=ready, restarts_prefix="R__"))
    for restarts in range(2):
        os.kill(pid_of(supervisor), signal.SIGKILL)
        await supervisor.until("child", is_ready_again(restarts))
    assert counts == ["none", "1", "2"]


def test_a_child_without_a_prefix_is_told_nothing(station: Station) -> None:
    spec = station.spec(IDLE)
    assert spec.environment({"signal": 3}) == spec.env
    told = replace(spec, env={"A": "1"}, restarts_prefix="R__").environment({"signal": 3, "not_ready": 1})
    assert told == {"A": "1", "R__SIGNAL": "3", "R__NOT_READY": "1"}


async def test_a_command_that_does_not_exist_fails_with_a_sentence(supervisor: Supervisor, station: Station) -> None:
    with pytest.raises(ChildFailed, match=r"cannot run /no/such: No such file or directory"):
        await supervisor.start(replace(station.spec(IDLE), argv=("/no/such",)))


async def test_it_gives_up_after_too_many_crashes(supervisor: Supervisor, station: Station) -> None:
    await supervisor.start(station.spec(CRASHING))
    with pytest.raises(ChildFailed, match=r"child was lost 3 times within 60 s and is given up: it ended .* status 3"):
        await supervisor.until_failed()
    status = supervisor.status("child")
    assert (status.state, status.restarts, status.pid) == (ChildState.FAILED, 2, None)
    assert status.restarts_by == {RestartReason.EXIT: 2}


async def test_waiting_for_a_child_that_is_given_up_raises(supervisor: Supervisor, station: Station) -> None:
    await supervisor.start(station.spec(CRASHING))
    with pytest.raises(ChildFailed, match="about to fail"):
        await supervisor.until("child", is_ready_again(100))


async def test_crashes_outside_the_window_are_forgotten(tmp_path: Path, station: Station) -> None:
    now = iter(range(0, 100_000, 1000))
    policy = replace(QUICK, clock=lambda: float(next(now)))
    async with Supervisor(tmp_path, policy) as supervisor:
        await supervisor.start(station.spec(CRASHING))
        status = await supervisor.until("child", is_ready_again(10))
        assert status.restarts > 10


async def test_a_child_without_restart_fails_at_its_first_end(supervisor: Supervisor, station: Station) -> None:
    await supervisor.start(replace(station.spec(CRASHING), restart=False))
    with pytest.raises(ChildFailed, match="child ended with exit status 3"):
        await supervisor.until_failed()


async def test_a_stopped_process_is_killed_and_restarted(supervisor: Supervisor, station: Station) -> None:
    pulse = Pulse(lost_after_s=1.0)
    station.beats = pulse.beat
    await supervisor.start(replace(station.spec(BEATING), pulse=pulse))
    first = pid_of(supervisor)
    os.kill(first, signal.SIGSTOP)
    status = await supervisor.until("child", is_ready_again(0))
    assert status.last_reason == "gave no sign of life for 1 s"
    assert status.restarts_by == {RestartReason.SILENT: 1}
    assert wait_for_end(first)


async def test_children_stop_in_reverse_order(tmp_path: Path, station: Station) -> None:
    async def listening() -> None:
        await station.heard("listening")

    async with Supervisor(tmp_path, QUICK) as supervisor:
        for name in ("store", "engine", "door"):
            await supervisor.start(replace(station.spec(POLITE, name), ready=listening))
    assert [await station.heard("bye") for _ in range(3)] == ["door", "engine", "store"]
    assert {status.state for status in supervisor.statuses} == {ChildState.STOPPED}


async def test_a_child_deaf_to_sigterm_is_killed(tmp_path: Path, station: Station) -> None:
    async def deaf() -> None:
        await station.heard("deaf")

    async with Supervisor(tmp_path, QUICK) as supervisor:
        await supervisor.start(replace(station.spec(DEAF), ready=deaf, stop_timeout_s=0.1))
        pid = pid_of(supervisor)
    assert wait_for_end(pid, 0)


async def test_stopping_while_a_restart_waits_leaves_nothing(tmp_path: Path, station: Station) -> None:
    async with Supervisor(tmp_path, replace(QUICK, first_s=3600.0, cap_s=3600.0)) as supervisor:
        await supervisor.start(station.spec(CRASHING))
        await supervisor.until("child", lambda status: status.state is ChildState.DOWN)
    assert supervisor.status("child").state is ChildState.STOPPED


async def test_stopping_in_the_middle_of_a_restart_leaves_nothing(tmp_path: Path, station: Station) -> None:
    readies = iter((station.ready, station.never))
    async with Supervisor(tmp_path, QUICK) as supervisor:
        await supervisor.start(replace(station.spec(IDLE), ready=lambda: next(readies)()))
        os.kill(pid_of(supervisor), signal.SIGKILL)
        await supervisor.until("child", lambda s: s.restarts == 1 and s.state is ChildState.STARTING)
        second = pid_of(supervisor)
    assert wait_for_end(second, 0)


async def test_what_a_dead_child_left_in_its_group_is_killed(supervisor: Supervisor, station: Station) -> None:
    script = PRELUDE + "import subprocess\nsay('left', subprocess.Popen(['sleep', '600']).pid)\nsignal.pause()\n"
    left: list[int] = []

    async def ready() -> None:
        left.append(int(await station.heard("left")))

    await supervisor.start(replace(station.spec(script), ready=ready))
    os.kill(pid_of(supervisor), signal.SIGKILL)
    await supervisor.until("child", is_ready_again(0))
    assert await asyncio.to_thread(wait_for_end, left[0])


def test_the_delay_doubles_up_to_its_cap() -> None:
    policy = RestartPolicy(first_s=0.1, cap_s=1.0)
    assert [policy.delay_s(n) for n in (1, 2, 3, 4, 5, 50)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]

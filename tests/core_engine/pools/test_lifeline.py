"""A child ends with its parent, however the parent ends: real processes, a parent that is killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from core_engine.pools.child import LIFELINE
from tests.core_engine.pools.conftest import wait_for_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waits by pidfd")

SUPERVISING = """
import asyncio, os, sys, pathlib
from core_engine.pools.child import ChildSpec
from core_engine.pools.supervisor import Supervisor
async def main():
    async def ready(): pass
    async with Supervisor(pathlib.Path(sys.argv[1])) as supervisor:
        for name in "ab":
            await supervisor.start(ChildSpec(name, ("sleep", "600"), dict(os.environ), ready))
        print(*(status.pid for status in supervisor.statuses), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
WATCHED = """
import os, subprocess, sys
code = "import sys; from core_engine.pools.lifeline import main; main(sys.argv[1:], platform='other')"
child = subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), "sleep", "600"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("script", [SUPERVISING, WATCHED], ids=["supervisor on linux", "watching fork elsewhere"])
def test_no_child_outlives_a_killed_parent(script: str, tmp_path: object) -> None:
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert children
        for pid in children:
            os.kill(pid, 0)  # alive
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert all(wait_for_end(pid) for pid in children)


def test_the_watching_fork_ends_with_the_command() -> None:
    code = "import sys; from core_engine.pools.lifeline import main; main(sys.argv[1:], platform='other')"
    argv = [sys.executable, "-c", code, str(os.getpid()), "echo", "done"]
    # The fork holds stdout too: reading to its end means that the fork is gone.
    assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout == "done\n"


def test_a_parent_that_is_gone_already_stops_the_start() -> None:
    argv = [sys.executable, "-I", "-S", str(LIFELINE), "1", "echo", "never"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the process that started it is gone" in done.stderr
    assert done.stdout == ""

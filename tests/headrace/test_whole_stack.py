"""The whole local stack with its real parts, through the command line, as a user runs it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.runtime import free_port

pytestmark = pytest.mark.timeout(600)


def environment(state: Path, **settings: str) -> dict[str, str]:
    rest = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    return rest | {"HEADRACE_STATE_DIR": str(state), "HEADRACE_HTTP__PORT": str(free_port("127.0.0.1"))} | settings


def descendants(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(line) for line in done.stdout.split()]
    return children + [pid for child in children for pid in descendants(child)]


def wait_for_end(pid: int) -> None:
    """Wait for a process that is not ours; the test's time limit bounds it."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([fd], [], [])
    os.close(fd)


@contextmanager
def stack_up(state: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`headrace up`, running, and the URL of its door."""
    environ = environment(state)
    argv = [sys.executable, "-m", "headrace", "up"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            for line in up.stdout:
                if line.startswith("Ctrl-C stops everything."):
                    break
            assert up.poll() is None
            yield up, f"http://127.0.0.1:{environ['HEADRACE_HTTP__PORT']}"
        finally:
            up.terminate()


@pytest.mark.weights
def test_the_demo_runs_and_leaves_nothing(tmp_path: Path) -> None:
    summary_file = tmp_path / "summary.json"
    argv = [sys.executable, "-m", "headrace", "demo", "--json", str(summary_file)]
    done = subprocess.run(argv, env=environment(tmp_path / "state"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "processes that were started have ended" in done.stdout
    summary = json.loads(summary_file.read_bytes())
    assert summary["online"]["n"] == 500
    assert summary["quality"]["auc_low"] > summary["quality"]["auc_prior"]
    assert set(summary["failover"]["rungs"]) == {"student"}
    assert summary["notice"]["tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    with stack_up(tmp_path / "state") as (up, url):
        assert httpx.get(f"{url}/readyz").json()["engine"]["available"]
        children = descendants(up.pid)
        up.send_signal(number)
        assert up.wait() == 0
        for pid in children:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert len(children) == 4


@pytest.mark.slow
def test_nothing_outlives_a_killed_parent_and_the_next_start_works(tmp_path: Path) -> None:
    with stack_up(tmp_path / "state") as (up, _):
        children = descendants(up.pid)
        up.kill()
        up.wait()
        for pid in children:
            wait_for_end(pid)
    assert len(children) == 4
    with stack_up(tmp_path / "state") as (_, url):
        assert httpx.get(f"{url}/healthz").status_code == 200


@pytest.mark.slow
def test_a_broken_model_file_is_said_and_what_was_started_is_stopped(tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + bytes(64))
    environ = environment(tmp_path / "state", HEADRACE_ENGINE__MODEL_PATH=str(model))
    argv = [sys.executable, "-m", "headrace", "up"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        _, said = up.communicate()
    assert up.returncode == 1
    assert said.startswith("headrace: engine ended before it was ready (exit status 1)")
    assert str(model) in said
    assert "Traceback" not in said
    assert "bye bye" in (tmp_path / "state" / "logs" / "valkey.log").read_text(), (
        "Valkey had been started and was not stopped"
    )

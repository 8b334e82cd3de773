"""The thread team, in C++ under sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.cpu.native import MEMORY, THREADS, run_native

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, pins threads")


@pytest.fixture
def busy_neighbours() -> Iterator[None]:
    """A process for each core that never waits."""
    cores = range(os.cpu_count() or 1)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores]
    yield
    for neighbour in neighbours:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.parametrize("sanitizer", [MEMORY, THREADS])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_chunk_is_done_once_and_seen_by_the_next_loop(threads: int, sanitizer: str, tmp_path: Path) -> None:
    run_native("team_stress.cpp", tmp_path, str(threads), "500", sanitizer=sanitizer)


@pytest.mark.usefixtures("busy_neighbours")
def test_loops_end_beside_busy_neighbours(tmp_path: Path) -> None:
    run_native("team_stress.cpp", tmp_path, str(os.cpu_count() or 1), "100")


@on_linux
def test_a_worker_without_work_and_a_caller_that_waits_for_it_sleep(tmp_path: Path) -> None:
    run_native("team_waits.cpp", tmp_path)


@on_linux
def test_a_team_that_cannot_be_is_refused_and_threads_stay_on_their_cpus(tmp_path: Path) -> None:
    run_native("team_refuses.cpp", tmp_path, str(min(os.sched_getaffinity(0))))

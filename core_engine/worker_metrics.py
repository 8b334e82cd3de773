"""The series of a door's several workers, added up: each writes its own into a folder that all of them read.

prometheus_client keeps every value in files of the folder, one set per process, if `PROMETHEUS_MULTIPROC_DIR` names it
when the process starts. A worker that dies leaves its counts behind, so that no sum ever falls; its gauges are taken
out by `worker_died`. What is one figure for all workers (the engine's, the database's) is no business of this file.
Source: prometheus_client, "Multiprocess Mode", https://prometheus.github.io/client_python/multiprocess/
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class WorkersCollector(Collector):
    """What all processes that write into `folder` have counted, dead ones included."""

    def __init__(self, folder: Path) -> None:
        assert os.environ.get(VARIABLE) == str(folder), "the values of this process would be in no file"
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """prometheus_client's own collector, but that a file which a starting worker has not filled yet is passed over
        instead of failing the page."""
        merged: Iterable[Metric] = MultiProcessCollector.merge([str(path) for path in self._files()])  # type: ignore[no-untyped-call]
        return merged

    def _files(self) -> Iterable[Path]:
        for path in sorted(self._folder.glob("*.db")):
            with suppress(FileNotFoundError):  # the gauges of a worker that has just died
                if path.stat().st_size:
                    yield path


def empty_folder(folder: Path) -> None:
    """Make `folder`, without what the workers of an earlier run have left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.db"):
        path.unlink()


def worker_died(folder: Path, pid: int) -> None:
    """What the process `pid` has in hand counts no more; what it has done does."""
    mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]

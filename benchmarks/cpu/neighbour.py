"""What a busy process beside the engine costs a step: a team that only spins at its barriers collapses there."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cpu.driving import DrivenEngine
from benchmarks.report import Row
from core_engine.settings import EngineSettings

COMPETITORS = (0, 1, 2)
CONTEXT = 128


@contextmanager
def competitors(count: int) -> Iterator[None]:
    """So many processes that compute without end."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def neighbour_rows(*, quick: bool) -> list[Row]:
    """The C++ step and the torch reference, batch 1 and 8, the numbers of competitors in turn."""
    engines = {
        "C++ int8": DrivenEngine.of(EngineSettings()),
        "torch reference bfloat16": DrivenEngine.of(EngineSettings(weights="bfloat16", kernel="reference")),
    }
    rounds, num_steps, counts = (1, 20, COMPETITORS[:2]) if quick else (3, 60, COMPETITORS)
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(rounds):
        for count in counts:
            with competitors(count):
                for name, driven in engines.items():
                    for batch in (1, 8):
                        found = driven.decode(batch, CONTEXT, num_steps).step
                        seconds.setdefault((name, batch, count), []).append(found)
    medians = {key: statistics.median(found) for key, found in seconds.items()}
    for driven in engines.values():
        driven.close()
    return [
        {
            "step": name,
            "batch": batch,
            "competitors": count,
            "step ms": 1e3 * median,
            "x quiet": median / medians[name, batch, 0],
        }
        for (name, batch, count), median in sorted(medians.items())
    ]

"""What both sides of the comparison have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.comparison.workload import Job

OURS = "headrace"


@dataclass(frozen=True, slots=True)
class Label:
    """Who it is: `bits` of the weights is the class of the comparison, `version` the program's own."""

    name: str
    peer: str
    precision: str
    bits: int
    version: str


class Side(Protocol):
    @property
    def label(self) -> Label: ...

    @property
    def peak_rss_bytes(self) -> int:
        """Of its processes during the last `run`."""

    def run(self, jobs: Sequence[Job], concurrency: int) -> float:
        """Seconds until all jobs have all their tokens, with at most `concurrency` in flight."""

    def since_start_s(self) -> float:
        """Seconds since its process was started."""

    def close(self) -> None: ...

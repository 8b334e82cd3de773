"""What is measured of each side, and the loop that does it side by side.

Every run of a measure gets prompts that no cache has seen (`workload.salted`), both sides the same ones; the sides take
turns, so that a slow minute of the machine meets all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.comparison.installation import PeerFailed
from benchmarks.comparison.ours import OurEngine
from benchmarks.comparison.side import Label, Side
from benchmarks.comparison.workload import Job, Workload, num_output, salted, shortened
from core_engine.errors import HeadraceError

SALTS = 8  # that one run of a measure may use
QUICK_TOKENS = 24  # per request, with --quick


@dataclass(frozen=True, slots=True)
class Measure:
    """`run(side, salt)` returns one figure in `unit`. One of ours only is compared with the peers' `against`."""

    name: str
    unit: str
    concurrency: int
    num_requests: int
    run: Callable[[Side, int], float]
    is_lower_better: bool = False
    against: str = ""

    @property
    def is_ours_only(self) -> bool:
        return bool(self.against)


@dataclass(slots=True)
class Figures:
    """The values of one measure on one side, one per round; `failure` says why there are no more."""

    measure: Measure
    label: Label
    values: list[float] = field(default_factory=list)
    peak_rss_bytes: int = 0
    failure: str = ""


def speed_measures(workload: Workload, *, quick: bool) -> list[Measure]:
    """Decode, W1, prefill and W3. `quick` serves fewer and shorter requests."""
    w1 = shortened(workload.w1, QUICK_TOKENS) if quick else list(workload.w1)
    counts = {1: 2, 8: 8, 32: 32} if quick else {1: 8, 8: 32, 32: 64}
    decode = shortened([workload.decode], QUICK_TOKENS)[0] if quick else workload.decode
    w3 = workload.w3[: 32 if quick else None]
    return [
        _decode(decode),
        *(_w1(w1[:count], concurrency) for concurrency, count in counts.items()),
        *(_prefill(size, jobs[: 1 if quick else None]) for size, jobs in workload.prefill.items()),
        _w3(w3),
        _w3_score(w3),
    ]


def _decode(job: Job) -> Measure:
    """The time of all tokens less that of the first one, which another prompt tells."""

    def run(side: Side, salt: int) -> float:
        first = side.run(salted(shortened([job], 1), salt), 1)
        whole = side.run(salted([job], salt + 1), 1)
        if whole <= first:
            raise PeerFailed(f"{job.max_tokens} tokens took no longer than one: the machine is too busy to measure")
        return 1e3 * (whole - first) / (job.max_tokens - 1)

    return Measure("decode_b1", "ms/token", 1, 1, run, is_lower_better=True)


def _w1(jobs: Sequence[Job], concurrency: int) -> Measure:
    def run(side: Side, salt: int) -> float:
        return num_output(jobs) / side.run(salted(jobs, salt), concurrency)

    return Measure(f"w1_c{concurrency}", "out tok/s", concurrency, len(jobs), run)


def _prefill(size: int, jobs: Sequence[Job]) -> Measure:
    assert len(jobs) <= SALTS, "each has a salt of its own"

    def run(side: Side, salt: int) -> float:
        return size / statistics.median(side.run(salted([job], salt + n), 1) for n, job in enumerate(jobs))

    return Measure(f"prefill{size}", "tok/s", 1, len(jobs), run)


def _w3(jobs: Sequence[Job]) -> Measure:
    """One token each; the shared prefix is in no cache before the first of them."""

    def run(side: Side, salt: int) -> float:
        return len(jobs) / side.run(salted(jobs, salt), 32)

    return Measure("w3", "req/s", 32, len(jobs), run)


def _w3_score(jobs: Sequence[Job]) -> Measure:
    """The same prompts as scorings over two labels; no peer has such a route."""

    def run(side: Side, salt: int) -> float:
        assert isinstance(side, OurEngine), "a measure of ours only"
        return len(jobs) / side.score(salted(jobs, salt), 32)

    return Measure("w3_score", "req/s", 32, len(jobs), run, against="w3")


def warm_up(side: Side, workload: Workload) -> None:
    """Raises `PeerFailed` or `HeadraceError`: a side that cannot do this is not measured."""
    side.run(salted(shortened(workload.w1[:8], 8), SALTS * 1000), 8)
    side.run(salted(workload.prefill[2048][:1], SALTS * 1000), 1)


def take_turns(sides: Sequence[Side], measures: Sequence[Measure], rounds: int) -> list[Figures]:
    """Every measure `rounds` times on every side in turn. A side that fails at one is left out of the rest of it."""
    found: list[Figures] = []
    for index, measure in enumerate(measures):
        able = [side for side in sides if isinstance(side, OurEngine) or not measure.is_ours_only]
        own = [(side, Figures(measure, side.label)) for side in able]
        for number in range(rounds):
            for side, figures in own:
                _once(side, figures, SALTS * (index * rounds + number))
        found += [figures for _, figures in own]
    return found


def _once(side: Side, figures: Figures, salt: int) -> None:
    if figures.failure:
        return
    try:
        figures.values.append(figures.measure.run(side, salt))
    except (PeerFailed, HeadraceError) as error:
        figures.failure = f"{figures.measure.name} of {side.label.name}: {error}"
    figures.peak_rss_bytes = max(figures.peak_rss_bytes, side.peak_rss_bytes)

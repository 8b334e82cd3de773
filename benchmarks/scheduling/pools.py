"""Two pools on one device: bursty interactive requests over a backlog that never ends.

The SLO of a request: TTFT <= 5 x and TPOT <= 2 x what it takes alone. Capacity is the highest trace speed at which 95 %
of the requests meet it without bulk. At 0.7 of that: how many points of attainment does bulk cost, and how much
bulk gets done against the best of ten fixed caps (bulk tokens per step) that keep attainment within one point?
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.report import Row
from benchmarks.scheduling.fixed_cap import fixed_cap
from benchmarks.scheduling.part import Part, slo_of, virtual
from core_engine.llm.step_time import load_calibration
from core_engine.simulation.presets import Device, cpu, h200_like
from core_engine.simulation.report import Report, report
from core_engine.simulation.trace import Trace, read_trace
from core_engine.simulation.workload import NO_WORK, Shaping, backlog, interactive

TRACES = Path(__file__).parents[3] / "shared" / "traces"
CODE, ARXIV = TRACES / "azure_llm_2023_code.csv", TRACES / "arxiv_summarization_lengths.csv"
GOAL, LOAD, POINT = 0.95, 0.7, 0.01
CPU_LENGTHS = 1 / 16  # prompts of thousands of tokens take seconds there: nobody would serve them so
SLOWEST = 1e-3
QUICK_S, CPU_PIECES_S, H200_PIECES_S = (620.0,), (600.0, 880.0, 1760.0, 2200.0), (600.0,)  # the H200's take minutes
CAPS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Setting:
    """A device, a piece of the interactive trace, the backlog, and by how much lengths are scaled."""

    device: Device
    code: Trace
    arxiv: Trace
    start_s: float
    duration_s: float
    length_scale: float

    def simulate(self, speed: float, *, has_bulk: bool, bulk_cap: int | None = None) -> Report:
        """One run; `bulk_cap` None leaves the pace of bulk to the scheduler."""
        limits = self.device.limits
        shaping = Shaping(
            limits.max_context_tokens,
            speed=speed,
            start_s=self.start_s,
            duration_s=self.duration_s,
            length_scale=self.length_scale,
        )
        jobs = interactive(self.code, shaping)
        bulk = backlog(self.arxiv, shaping, seed=0) if has_bulk else NO_WORK
        scheduler = self.device.scheduler() if bulk_cap is None else fixed_cap(self.device, bulk_cap)
        recording = virtual(self.device, scheduler).run(jobs, bulk, concurrency=limits.bulk.max_seats + 8)
        return report(recording, slo_of(self.device))


def run(*, quick: bool) -> Part:
    """Minutes of the trace and ten caps; quick: twenty seconds and four.

    One minute holds a few hundred requests, so that one request more or less is a quarter of a point: the headline is
    the mean over the pieces of a device, by requests. The pieces are not the densest: where a burst is so tight that
    more than 5 % miss their objective at any speed, no capacity is defined. Returns a part without rows, which says so,
    if the traces are not beside the repository.
    """
    if not (CODE.exists() and ARXIV.exists()):
        return Part(f"Two pools: not run, there are no traces in {TRACES}", [])
    duration_s, caps = (20.0, (4, 16, 32, 64)) if quick else (60.0, CAPS)
    code, arxiv = read_trace(CODE), read_trace(ARXIV)
    this_cpu = (cpu(load_calibration("bfloat16")), CPU_LENGTHS, QUICK_S if quick else CPU_PIECES_S)
    devices = (this_cpu, (h200_like(), 1.0, QUICK_S if quick else H200_PIECES_S))
    lost, ratios, rows = [], [], list[Row]()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for device, length_scale, starts_s in devices:
            pieces = [Setting(device, code, arxiv, start_s, duration_s, length_scale) for start_s in starts_s]
            made = [compare(piece, caps, workers) for piece in pieces]
            rows += [row for each in made for row in each.rows]
            lost.append(_mean([each.points_lost for each in made], made))
            ratios.append(_mean([each.vs_best_cap for each in made], made))
    title = (
        f"Two pools on one device: pieces of {duration_s:g} s of the Azure code trace over an arXiv backlog, "
        f"at {LOAD:g} of capacity (on this CPU all lengths x 1/{1 / CPU_LENGTHS:g})"
    )
    return Part(title, rows, {"slo_points_lost": max(lost), "bulk_vs_best_cap": min(ratios)})


def _mean(values: list[float], made: list[Comparison]) -> float:
    weights = [each.num_requests for each in made]
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: list[Row]
    num_requests: int
    points_lost: float
    vs_best_cap: float


def compare(setting: Setting, caps: tuple[int, ...], workers: ProcessPoolExecutor) -> Comparison:
    """Without bulk, with bulk, and with each fixed cap, at `LOAD` of the capacity without bulk."""
    capacity = find_capacity(setting)
    speed = LOAD * capacity
    alone = workers.submit(partial(setting.simulate, speed, has_bulk=False))
    ours = workers.submit(partial(setting.simulate, speed, has_bulk=True))
    capped = {cap: workers.submit(partial(setting.simulate, speed, has_bulk=True, bulk_cap=cap)) for cap in caps}
    attainment = alone.result().interactive.attainment
    fixed = {cap: each.result() for cap, each in capped.items()}
    best = best_of(list(fixed.values()), attainment - POINT)
    row = partial(_row, setting, speed, attainment, best)
    rows = [
        row("no bulk", alone.result()),
        row("ours", ours.result()),
        *(row(f"fixed cap {cap}", each) for cap, each in fixed.items()),
    ]
    points = 100 * (attainment - ours.result().interactive.attainment)
    num_requests = alone.result().interactive.requests
    return Comparison(rows, num_requests, points, ours.result().bulk.tokens_per_s / best)


def best_of(fixed: list[Report], least: float) -> float:
    """Bulk tokens/s of the best cap that keeps attainment at `least`; if none does, of the one that comes nearest."""
    kept = [each for each in fixed if each.interactive.attainment >= least]
    if not kept:
        highest = max(each.interactive.attainment for each in fixed)
        kept = [each for each in fixed if each.interactive.attainment == highest]
    return max(each.bulk.tokens_per_s for each in kept)


def find_capacity(setting: Setting, num_halvings: int = 6) -> float:
    """The highest speed, to 2 %, at which `GOAL` of the requests meet their objective with the device to themselves.

    Attainment is not quite monotone in speed: what is found is a speed that does, with one 2 % above that does not.
    """

    def meets(speed: float) -> bool:
        return setting.simulate(speed, has_bulk=False).interactive.attainment >= GOAL

    low = high = 1.0
    while not meets(low):
        low, high = low / 2, low
        if low < SLOWEST:
            raise ValueError(f"{setting.device.name}: {GOAL:.0%} is not met at any speed down to {SLOWEST:g}")
    while low == high or meets(high):
        low, high = high, 2 * high
    for _ in range(num_halvings):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def _row(setting: Setting, speed: float, attainment: float, best: float, policy: str, made: Report) -> Row:
    seen, bulk = made.interactive, made.bulk
    return {
        "device": f"{setting.device.name}, from {setting.start_s:g} s",
        "speed": f"{speed:.3g}",
        "bulk": policy,
        "attainment": f"{seen.attainment:.2%}",
        "points lost": 100 * (attainment - seen.attainment),
        "TTFT / TPOT met": f"{seen.ttft_attainment:.2%} / {seen.tpot_attainment:.2%}",
        "TTFT p99 ms": seen.ttft_s.p99 * 1e3,
        "TPOT p99 ms": seen.tpot_s.p99 * 1e3,
        "bulk tokens/s (mean batch)": f"{bulk.tokens_per_s:.0f} ({bulk.mean_batch:.1f})",
        "vs best cap": bulk.tokens_per_s / best,
        "requests": seen.requests,
        "steps": made.num_steps,
    }

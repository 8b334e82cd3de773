"""What the scheduler itself costs: wall time of schedule + commit, pure Python, results made up. The one real clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from benchmarks.report import Row
from benchmarks.scheduling.part import Part
from core_engine.contracts import Pool
from core_engine.llm.pacing import Objective
from core_engine.llm.scheduler import Scheduler
from core_engine.simulation.presets import h200_like, pool_limits
from core_engine.simulation.report import percentile
from core_engine.simulation.workload import FILLER, Job

SEATS, CONTEXT = 256, 512


@dataclass(frozen=True, slots=True)
class Seated:
    scheduler: Scheduler
    now: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step's wall seconds, its end on the virtual clock, and its sequences."""

    wall_s: float
    end_s: float
    rows: int


def seated(num_interactive: int, num_bulk: int, num_waiting: int) -> Seated:
    """So many sequences that decode, and more that wait and have no seat."""
    device = h200_like()
    limits = replace(
        device.limits,
        interactive=pool_limits(0, SEATS, 1.0),
        bulk=pool_limits(0, SEATS, 1.0),
        max_step_tokens=1 << 20,
        objective=Objective(1e3, 1e3),  # so that nothing is held back and every step has all the rows
    )
    scheduler = replace(device, limits=limits).scheduler()
    for number in range(num_interactive + num_waiting):
        scheduler.add(Job(number, 0.0, CONTEXT, 2048, 2048, tenant=f"t{number % 4}").request(), 0.0)
    for number in range(num_bulk):
        job = Job(number, 0.0, CONTEXT, 2048, 2048, pool=Pool.BULK, tenant="nightly")
        scheduler.add(job.request(), 0.0)
    now = 0.0
    while sum(s.is_decoding for pool in Pool for s in scheduler.running[pool]) < num_interactive + num_bulk:
        now = step(scheduler, now).end_s
        assert now < 600, "the sequences did not all begin to decode"
    return Seated(scheduler, now)


def step(scheduler: Scheduler, now: float) -> Step:
    """Schedule, make results up (not timed), commit."""
    start = time.perf_counter()
    plan = scheduler.schedule(now)
    scheduled_s = time.perf_counter() - start
    end_s = now + plan.predicted_s
    tokens = {item.sequence.id: FILLER for item in plan.scheduled if item.samples}
    start = time.perf_counter()
    scheduler.commit(plan, tokens, frozenset(), end_s)
    return Step(scheduled_s + time.perf_counter() - start, end_s, len(plan.scheduled))


def run(*, quick: bool) -> Part:
    num_steps = 300 if quick else 2000
    rows = [
        _row("256 interactive", seated(256, 0, 0), num_steps),
        _row("256 interactive, 1,000 waiting", seated(256, 0, 1000), num_steps),
        _row("64 interactive, 192 bulk", seated(64, 192, 0), num_steps),
    ]
    return Part("Schedule + commit, wall time, decode rows", rows, {"schedule_ms_256": float(rows[0]["median ms"])})


def _row(case: str, seated: Seated, num_steps: int) -> Row:
    now, made = seated.now, list[Step]()
    for _ in range(num_steps):
        made.append(step(seated.scheduler, now))
        now = made[-1].end_s
    walls = [each.wall_s for each in made]
    return {
        "decoding": case,
        "steps": num_steps,
        "rows per step": sum(each.rows for each in made) / num_steps,
        "median ms": percentile(walls, 0.5) * 1e3,
        "p99 ms": percentile(walls, 0.99) * 1e3,
    }

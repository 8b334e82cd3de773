"""Continuous against static batching: the same device, requests and seats. The seed of the whole design, shown once."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.report import Row
from benchmarks.scheduling.baselines import CountedBlocks, StaticBatches
from benchmarks.scheduling.part import Part, slo_of, virtual
from core_engine.simulation.presets import Device, h200_like, pool_limits
from core_engine.simulation.recording import Recording
from core_engine.simulation.report import report
from core_engine.simulation.virtual_engine import StepScheduler
from core_engine.simulation.workload import Job

SEATS, NUM_PLACES = 32, 10


def jobs(num_jobs: int, rate_rps: float, seed: int = 0) -> list[Job]:
    """Poisson arrivals; prompts of 64 to 512 tokens; outputs exponential, 128 on average, 512 at most."""
    rng = random.Random(seed)
    made, now = [], 0.0
    for number in range(num_jobs):
        now += rng.expovariate(rate_rps)
        output = min(512, 1 + int(rng.expovariate(1 / 128)))
        made.append(Job(number, now, rng.randint(64, 512), output, 512))
    return made


def run(*, quick: bool) -> Part:
    device = h200_like()
    seats = pool_limits(0, SEATS, 1.0)
    device = replace(device, limits=replace(device.limits, interactive=seats, bulk=pool_limits(0, 1, 1.0)))
    rows = []
    for rate_rps in (10.0, 30.0):
        work = jobs(300 if quick else 2000, rate_rps)
        blocks = CountedBlocks(device.num_blocks - 1, device.block_size)
        static = StaticBatches(blocks, device.step_time, SEATS, device.limits.max_step_tokens)
        rows.append(_row("static", rate_rps, device, static, work))
        rows.append(_row("continuous", rate_rps, device, device.scheduler(), work))
    title = f"Continuous against static batching, h200-like, {SEATS} seats; batch size at tenths of the run"
    return Part(title, rows)


def _row(policy: str, rate_rps: float, device: Device, scheduler: StepScheduler, work: list[Job]) -> Row:
    recording = virtual(device, scheduler, exact=True).run(work)  # a batch size for every step
    made = report(recording, slo_of(device)).interactive
    assert made.finished == len(work)
    return {
        "batching": policy,
        "requests/s": rate_rps,
        "requests": len(work),
        "completion tokens/s": made.completion_tokens_per_s,
        "mean batch": made.mean_batch,
        "E2EL p50 s": made.e2el_s.p50,
        "E2EL p99 s": made.e2el_s.p99,
        "TTFT p99 s": made.ttft_s.p99,
        "TPOT p99 ms": made.tpot_s.p99 * 1e3,
        "batch by step": _batch_sizes(recording),
    }


def _batch_sizes(recording: Recording) -> str:
    """The step's batch size at ten places, evenly spaced over the steps."""
    sizes = [sample.interactive for sample in recording.samples]
    return " ".join(str(sizes[(2 * place + 1) * len(sizes) // (2 * NUM_PLACES)]) for place in range(NUM_PLACES))

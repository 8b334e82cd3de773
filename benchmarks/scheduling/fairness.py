"""Who could starve, and does not: bulk under interactive load without end, and a tenant behind another one's flood.

The bound on bulk's wait, the pool's `max_starve_s`, is looked at when a step begins: the one in flight comes on top.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.report import Row
from benchmarks.scheduling.baselines import CountedBlocks, LastInFirstOut
from benchmarks.scheduling.part import Part, virtual
from core_engine.contracts import Pool
from core_engine.simulation.presets import Device, h200_like
from core_engine.simulation.recording import Attempt
from core_engine.simulation.virtual_engine import StepScheduler
from core_engine.simulation.workload import Job

RATE_RPS = 60.0  # of 1,024-token prompts: twice what the device can prefill


def flood(duration_s: float, tenant: str = "flood", first: int = 1) -> Iterator[Job]:
    rng, now, number = random.Random(0), 0.0, first
    while (now := now + rng.expovariate(RATE_RPS)) < duration_s:
        yield Job(number, now, 1024, 32, 32, tenant=tenant)
        number += 1


def run(*, quick: bool) -> Part:
    device, duration_s = h200_like(), 5.0 if quick else 30.0
    bulk = Job(0, 1.0, 512, 16, 16, pool=Pool.BULK, tenant="nightly")
    other = Job(0, 1.0, 512, 16, 16, tenant="other")
    baseline = LastInFirstOut(
        CountedBlocks(device.num_blocks - 1, device.block_size),
        device.step_time,
        device.limits.max_seats,
        device.limits.max_step_tokens,
    )
    rows = [
        _row("bulk under twice the interactive load", "ours", device, device.scheduler(), bulk, duration_s),
        _row("a tenant behind another's flood", "ours", device, device.scheduler(), other, duration_s),
        _row("a tenant behind another's flood", "first come, first served", device, baseline, other, duration_s),
    ]
    return Part(f"Starvation, h200-like, {RATE_RPS:g} requests/s of 1,024 tokens for {duration_s:g} s", rows)


def _row(case: str, policy: str, device: Device, scheduler: StepScheduler, job: Job, duration_s: float) -> Row:
    jobs = sorted([*flood(duration_s), job], key=lambda each: each.arrival_s)
    recording = virtual(device, scheduler, exact=True).run(jobs)
    attempt = recording.attempts[job.id]
    alone_s = device.step_time.unloaded_prefill_s(job.prompt_tokens, device.limits.max_step_tokens)
    bound_s = device.limits.bulk.max_starve_s if job.pool is Pool.BULK else None
    return {
        "case": case,
        "policy": policy,
        "started after s": attempt.started_s - job.arrival_s if policy == "ours" else "-",
        "bound s": "-" if bound_s is None else bound_s,
        "longest step s": max(b.at_s - a.at_s for a, b in pairwise(recording.samples)),
        "TTFT s": _known(attempt),
        "TTFT alone s": alone_s,
        "flood TTFT mean s": _mean([a for a in recording.attempts.values() if a.job.tenant == "flood"]),
    }


def _known(attempt: Attempt) -> float:
    assert attempt.ttft_s is not None, f"{attempt.job.id} has no first token"
    return attempt.ttft_s


def _mean(attempts: list[Attempt]) -> float:
    return sum(map(_known, attempts)) / len(attempts)

"""300 sequences at once, and KV blocks for 19 % or 38 % of what they need: how much is computed twice?"""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.report import Row
from benchmarks.scheduling.baselines import CountedBlocks, LastInFirstOut
from benchmarks.scheduling.part import Part, slo_of, virtual
from benchmarks.scheduling.variants import LastVictim, PromptFits, with_seating
from core_engine.simulation.presets import Device, h200_like, pool_limits
from core_engine.simulation.report import PoolReport, report
from core_engine.simulation.virtual_engine import StepScheduler
from core_engine.simulation.workload import Job

NUM_SEQUENCES, SHARES = 300, (0.19, 0.38)
MAX_TOKENS = 1024  # what every caller asks for; what it gets is drawn


def jobs(seed: int) -> list[Job]:
    """Lengths with a long tail; the scheduler sees prompts and `MAX_TOKENS`, never the true length."""
    rng = random.Random(seed)

    def draw(median: float, most: int) -> int:
        return min(most, max(8, int(rng.lognormvariate(0, 0.8) * median)))

    return [
        Job(number, 0.0, draw(300, 2048), draw(250, MAX_TOKENS), MAX_TOKENS, tenant="all")
        for number in range(NUM_SEQUENCES)
    ]


def device_for(work: list[Job], share: float) -> Device:
    """An H200-like device whose blocks hold `share` of all the tokens that `work` will have, and seats for all."""
    device = h200_like()
    needed = sum(-(-(job.prompt_tokens + job.output_tokens) // device.block_size) for job in work)
    seats = pool_limits(0, NUM_SEQUENCES, 1.0)
    limits = replace(device.limits, interactive=seats, bulk=pool_limits(0, 1, 1.0), max_step_tokens=2048)
    return replace(device, limits=limits, num_blocks=int(needed * share) + 1)


def run(*, quick: bool) -> Part:
    """Five seeds, and variants of our scheduler; quick: one seed, no variants. Headline: the worse share's mean."""
    rows, ratios = [], {}
    for share in SHARES:
        made = [_compare(share, seed, quick=quick) for seed in range(1 if quick else 5)]
        rows += [row for compared in made for row in compared]
        ratios[share] = sum(r["wasted / LIFO"] for c in made for r in c if r["policy"] == "ours") / len(made)
    title = f"{NUM_SEQUENCES} sequences at once, {MAX_TOKENS} tokens asked for each, h200-like, as many seats"
    return Part(title, rows, {"wasted_vs_lifo": max(ratios.values())})


def _compare(share: float, seed: int, *, quick: bool) -> list[Row]:
    work = jobs(seed)
    device = device_for(work, share)
    blocks = CountedBlocks(device.num_blocks - 1, device.block_size)
    baseline = LastInFirstOut(blocks, device.step_time, NUM_SEQUENCES, device.limits.max_step_tokens)
    made = {"LIFO": _simulate(device, baseline, work), "ours": _simulate(device, device.scheduler(), work)}
    if not quick:
        made["ours, LIFO victims"] = _simulate(device, with_seating(device, LastVictim), work)
        made["ours, seated when the prompt fits"] = _simulate(device, with_seating(device, PromptFits), work)
    return [_row(policy, share, seed, each, made["LIFO"]) for policy, each in made.items()]


def _simulate(device: Device, scheduler: StepScheduler, work: list[Job]) -> PoolReport:
    recording = virtual(device, scheduler).run(work)
    return report(recording, slo_of(device)).interactive


def _row(policy: str, share: float, seed: int, made: PoolReport, lifo: PoolReport) -> Row:
    assert made.finished == NUM_SEQUENCES, f"{policy}: {made.finished} of {NUM_SEQUENCES} finished"
    return {
        "KV": f"{share:.0%}",
        "seed": seed,
        "policy": policy,
        "tokens/s": made.tokens_per_s,
        "mean batch": made.mean_batch,
        "wasted tokens": made.wasted_tokens,
        "pre-emptions": made.preemptions,
        "of sequences": made.preempted_requests,
        "wasted / LIFO": made.wasted_tokens / lifo.wasted_tokens,
        "throughput / LIFO": made.tokens_per_s / lifo.tokens_per_s,
    }

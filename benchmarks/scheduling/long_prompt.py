"""A prompt of 60,000 tokens, and a short one that comes after it began: how many steps until the short one's token?

The other side of it: what the long one loses, alone on the device, against a scheduler that never divides a prompt for
the sake of others, only by the step's token budget.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.report import Row
from benchmarks.scheduling.baselines import CountedBlocks, LastInFirstOut
from benchmarks.scheduling.part import Part, virtual
from core_engine.simulation.presets import Device, h200_like
from core_engine.simulation.recording import Recording
from core_engine.simulation.virtual_engine import StepScheduler
from core_engine.simulation.workload import Job

LONG, SHORT = Job(0, 0.0, 60_000, 64, 64, tenant="long"), Job(1, 0.5, 100, 16, 16, tenant="short")


def run(*, quick: bool) -> Part:
    """The same in both sizes: it takes a moment."""
    device = h200_like()
    uncapped = _ttft_s(_run(device, _uncapped(device), [LONG]), LONG)
    one_step = device.step_time.unloaded_prefill_s(LONG.prompt_tokens, LONG.prompt_tokens)
    rows, worst = [], 0
    for delay_s in (0.01, 0.5, 1.0, 2.0, 3.0):
        short = replace(SHORT, arrival_s=delay_s)
        for same_tenant in (False, True):
            job = replace(short, tenant=LONG.tenant) if same_tenant else short
            recording = _run(device, device.scheduler(), [LONG, job])
            num_steps = _steps_to_first_token(recording, job)
            worst = max(worst, num_steps)
            rows.append(_row(f"with a short one after {delay_s:g} s", same_tenant, recording, job, num_steps, uncapped))
    alone = _run(device, device.scheduler(), [LONG])
    rows.append(_row("alone", True, alone, None, 0, uncapped))
    rows.append(_row("alone, uncapped scheduler", True, _run(device, _uncapped(device), [LONG]), None, 0, uncapped))
    loss = _ttft_s(alone, LONG) / uncapped - 1
    title = (
        f"60,000 tokens and a short prompt of {SHORT.prompt_tokens}, h200-like, at most "
        f"{device.limits.max_step_tokens} tokens a step (the long one in a single step: {one_step:.3f} s)"
    )
    return Part(title, rows, {"short_ttft_chunks": worst, "long_alone_loss": loss})


def _uncapped(device: Device) -> StepScheduler:
    blocks = CountedBlocks(device.num_blocks - 1, device.block_size)
    return LastInFirstOut(blocks, device.step_time, device.limits.max_seats, device.limits.max_step_tokens)


def _run(device: Device, scheduler: StepScheduler, jobs: list[Job]) -> Recording:
    return virtual(device, scheduler, exact=True).run(jobs)


def _ttft_s(recording: Recording, job: Job) -> float:
    ttft_s = recording.attempts[job.id].ttft_s
    assert ttft_s is not None, f"{job.id} has no first token"
    return ttft_s


def _steps_to_first_token(recording: Recording, job: Job) -> int:
    """Steps from the one that runs at the arrival to the one that gives the first token, both included."""
    first_token_s = job.arrival_s + _ttft_s(recording, job)
    ends = [sample.at_s for sample in recording.samples[1:]]  # a step ends where the next one begins
    return 1 + sum(job.arrival_s < end_s < first_token_s - 1e-9 for end_s in ends)


def _row(case: str, same_tenant: bool, recording: Recording, short: Job | None, num_steps: int, base_s: float) -> Row:
    return {
        "long prompt": case,
        "tenant": "-" if short is None else "same" if same_tenant else "another",
        "short TTFT steps": num_steps if short else "-",
        "short TTFT ms": _ttft_s(recording, short) * 1e3 if short else "-",
        "long TTFT s": _ttft_s(recording, LONG),
        "vs uncapped alone": _ttft_s(recording, LONG) / base_s,
        "steps": recording.num_steps,
    }

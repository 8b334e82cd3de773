"""Small traces and devices for the simulator's tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from core_engine.contracts import Pool
from core_engine.llm.step_time import StepTime
from core_engine.simulation.presets import Device, cpu, pool_limits
from core_engine.simulation.workload import Job

STEP_TIME = StepTime(a=0.01, b=1e-4, c=2e-4, d=1e-7, e=1e-9)


def device(
    *,
    num_blocks: int = 400,
    seats: int = 8,
    bulk_seats: int = 6,
    step_tokens: int = 64,
    step_time: StepTime = STEP_TIME,
) -> Device:
    """Small enough to be full now and then."""
    made = cpu(step_time)
    limits = replace(
        made.limits,
        interactive=pool_limits(2, seats, 1.0),
        bulk=pool_limits(1, bulk_seats, 0.75),
        max_context_tokens=512,
        max_step_tokens=step_tokens,
    )
    return replace(made, limits=limits, num_blocks=num_blocks)


def job(number: int = 0, arrival_s: float = 0.0, prompt: int = 8, output: int = 4, **changes: object) -> Job:
    made = Job(number, arrival_s, prompt, output, max(output, 64))
    return replace(made, **changes)  # type: ignore[arg-type]


@st.composite
def jobs(draw: st.DrawFn, pool: Pool = Pool.INTERACTIVE, max_size: int = 25) -> list[Job]:
    """Jobs in order of arrival, some of them at the same instant."""
    now, made = 0.0, []
    for number in range(draw(st.integers(1, max_size))):
        now += draw(st.sampled_from([0.0, 0.001, 0.05, 0.5, 3.0]))
        prompt, output = draw(st.integers(1, 200)), draw(st.integers(1, 120))
        made.append(Job(number, now, prompt, output, 120, pool, tenant=draw(st.sampled_from("ab"))))
    return made


def azure(path: Path, rows: Iterable[tuple[float, int, int]]) -> Path:
    """A trace file of rows (second of the minute, prompt tokens, output tokens)."""
    lines = [f"2023-11-16 18:17:{second:010.7f},{prompt},{output}" for second, prompt, output in rows]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def lengths(path: Path, rows: Iterable[tuple[int, int]]) -> Path:
    """A backlog file of rows (prompt tokens, output tokens)."""
    lines = [f"{prompt},{output},{prompt + output},{prompt / output}" for prompt, output in rows]
    path.write_text("\n".join(["num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", *lines]) + "\n")
    return path

"""Composition root of `headrace simulate`: traces and a device in, what the scheduler would have done out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from core_engine.contracts import Pool
from core_engine.errors import ConfigurationError
from core_engine.llm.limits import PoolLimits
from core_engine.llm.pacing import Objective
from core_engine.llm.step_time import load_calibration
from core_engine.simulation.plot import plot
from core_engine.simulation.presets import Device, cpu, preset
from core_engine.simulation.recording import Recording
from core_engine.simulation.report import Percentiles, PoolReport, Report, Slo, report
from core_engine.simulation.trace import read_trace
from core_engine.simulation.virtual_engine import VirtualEngine
from core_engine.simulation.workload import NO_WORK, Shaping, backlog, interactive


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What the command line asked for. None: the device's own."""

    trace: Path | None
    bulk: Path | None
    calibration: Path | None = None
    preset: str | None = None
    dtype: str = "bfloat16"
    speed: float = 1.0
    duration_s: float = math.inf
    length_scale: float = 1.0
    seed: int = 0
    kv_blocks: int | None = None
    seats: int | None = None
    bulk_seats: int | None = None
    max_step_tokens: int | None = None
    max_context_tokens: int | None = None
    overhead_ms: float = 0.0
    known_lengths: bool = False
    ttft_factor: float = 5.0
    tpot_factor: float = 2.0
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Simulated:
    """A finished simulation."""

    device: Device
    recording: Recording
    report: Report
    num_clipped: int


def simulate(options: SimulateOptions, *, keep_samples: bool = False) -> Simulated:
    """Replay the traces through the scheduler.

    Raises:
        ConfigurationError: neither trace nor bulk, or a trace, calibration, preset or size that cannot be.
    """
    if options.trace is None and options.bulk is None:
        raise ConfigurationError("nothing to simulate: give --trace, --bulk, or both")
    device = _device(options)
    shaping = Shaping(
        device.limits.max_context_tokens,
        speed=options.speed,
        duration_s=options.duration_s,
        length_scale=options.length_scale,
        known_lengths=options.known_lengths,
    )
    jobs = interactive(read_trace(options.trace), shaping) if options.trace else NO_WORK
    bulk = backlog(read_trace(options.bulk), shaping, options.seed) if options.bulk else NO_WORK
    overhead_s = options.overhead_ms / 1e3
    engine = VirtualEngine(
        device.scheduler(),
        device.step_time,
        overhead_s=overhead_s,
        fast_forward=not options.exact,
        keep_samples=keep_samples,
    )
    until_s = options.duration_s / options.speed if options.trace is None else math.inf
    recording = engine.run(jobs, bulk, concurrency=2 * device.limits.bulk.max_seats, until_s=until_s)
    limits = device.limits
    slo = Slo(limits.objective, device.step_time, limits.max_step_tokens, overhead_s)
    return Simulated(device, recording, report(recording, slo), jobs.num_clipped + bulk.num_clipped)


def run_simulate(options: SimulateOptions, plot_path: Path | None, json_path: Path | None, console: Console) -> None:
    """Simulate, print the report, and write plot and JSON where asked for."""
    done = simulate(options, keep_samples=plot_path is not None)
    show(done, options, console)
    if plot_path is not None:
        plot(done.recording, f"headrace simulate, {done.device.name}, speed {options.speed:g}", plot_path)
    if json_path is not None:
        json_path.write_text(to_json(done))


def to_json(done: Simulated) -> str:
    """The report as JSON; a figure of nothing (no request, no gap) is null."""
    made = {"device": done.device.name, "num_clipped": done.num_clipped, **asdict(done.report)}
    return json.dumps(_without_nan(made), indent=1) + "\n"


def show(done: Simulated, options: SimulateOptions, console: Console) -> None:
    made = done.report
    console.print(
        f"{done.device.name}: {made.duration_s:.1f} s simulated, busy {made.busy_share:.1%}, {made.num_steps} steps "
        f"({made.num_forwarded} fast-forwarded), peak KV use {made.peak_kv_share:.1%}",
        soft_wrap=True,
    )
    if done.num_clipped:
        limit = done.device.limits.max_context_tokens
        console.print(f"{done.num_clipped} requests were cut to the context of {limit} tokens", soft_wrap=True)
    table = Table("", *(str(pool) for pool in Pool if made.of(pool).requests))
    for rows in zip(*(_cells(made.of(pool), options) for pool in Pool if made.of(pool).requests), strict=True):
        table.add_row(rows[0][0], *(value for _, value in rows))
    console.print(table)


def _cells(pool: PoolReport, options: SimulateOptions) -> Iterator[tuple[str, str]]:
    yield "requests: finished / refused / unfinished", f"{pool.finished} / {pool.refused} / {pool.unfinished}"
    yield "TTFT p50 / p99, ms", _ms(pool.ttft_s)
    yield "TPOT p50 / p99, ms", _ms(pool.tpot_s)
    yield "ITL p50 / p99, ms", _ms(pool.itl_s)
    yield "E2EL p50 / p99, ms", _ms(pool.e2el_s)
    slo = f"SLO: TTFT <= {options.ttft_factor:g} x, TPOT <= {options.tpot_factor:g} x unloaded"
    yield slo, f"{pool.attainment:.2%} (TTFT {pool.ttft_attainment:.2%}, TPOT {pool.tpot_attainment:.2%})"
    yield "goodput at the SLO, requests/s", f"{pool.goodput_rps:.3f}"
    yield "prompt + completion tokens/s", f"{pool.tokens_per_s:.0f} (mean batch {pool.mean_batch:.1f})"
    yield "completion tokens/s", f"{pool.completion_tokens_per_s:.0f} (mean batch {pool.mean_batch:.1f})"
    yield "pre-emptions / of requests", f"{pool.preemptions} / {pool.preempted_requests}"
    yield "wasted tokens", str(pool.wasted_tokens)
    yield "cached tokens", str(pool.cached_tokens)


def _device(options: SimulateOptions) -> Device:
    if options.preset is not None and options.calibration is not None:
        raise ConfigurationError("--preset and --calibration exclude each other: both give the step time")
    if options.preset is not None:
        device = preset(options.preset)
    else:
        device = cpu(load_calibration(options.dtype, options.calibration))
    limits = device.limits
    changed = replace(
        limits,
        interactive=_with_seats(limits.interactive, options.seats),
        bulk=_with_seats(limits.bulk, options.bulk_seats),
        objective=Objective(options.ttft_factor, options.tpot_factor),
        max_step_tokens=options.max_step_tokens or limits.max_step_tokens,
        max_context_tokens=options.max_context_tokens or limits.max_context_tokens,
    )
    return replace(device, limits=changed, num_blocks=options.kv_blocks or device.num_blocks)


def _with_seats(limits: PoolLimits, seats: int | None) -> PoolLimits:
    """With so many seats, of which the floor leaves most to the other pool."""
    if seats is None:
        return limits
    return replace(limits, max_seats=seats, min_seats=min(limits.min_seats, seats // 4))


def _ms(seconds: Percentiles) -> str:
    return f"{seconds.p50 * 1e3:.2f} / {seconds.p99 * 1e3:.2f}"


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value

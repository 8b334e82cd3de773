"""`headrace bench device`: the calibration of this device, measured, judged on steps of its own, and written."""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core_engine.llm.calibration import PASSES, Errors, Span, calibrate, errors, measure, store
from core_engine.llm.engine import Engine
from core_engine.llm.step_time import StepTime
from core_engine.settings import Settings
from headrace.engine import build_engine
from headrace.machine import machine


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What was found, on how many steps it was judged, and where it lies."""

    model: StepTime
    errors: Errors
    held_out: int
    path: Path

    def lines(self) -> list[str]:
        a, b, c, d, e = self.model.coefficients
        return [
            f"a {a * 1e3:.4g} ms per step",
            f"b {b * 1e6:.4g} us per prompt token",
            f"c {c * 1e6:.4g} us per decode row",
            f"d {d * 1e9:.4g} ns per context token of decode",
            f"e {e * 1e9:.4g} ns per attended pair of prompts",
            f"error on {self.held_out} other steps: median {self.errors.median:.1%}, p95 {self.errors.p95:.1%}",
            f"written to {self.path}; HEADRACE_ENGINE__CALIBRATION={self.path} makes engines start from it",
        ]


def of_model(settings: Settings, model: Path | None, weights: str | None) -> Settings:
    """The settings with another model or precision, where one is given."""
    changes: dict[str, Any] = {}
    if model is not None:
        changes |= {"model_path": model, "model_name": model.stem}
    if weights is not None:
        changes |= {"weights": str(weights)}
    return settings.model_copy(update={"engine": settings.engine.model_copy(update=changes)})


def bench_device(settings: Settings, out: Path | None, num_steps: int, tell: Callable[[str], None]) -> None:
    """Measure the engine of `settings` and write its calibration to `out`, or into the state folder.

    Raises:
        ConfigurationError: a model that cannot be loaded, or a file that cannot be written.
    """
    threads = settings.engine.num_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    dtype = settings.engine.weights
    path = out or settings.state_dir / "calibrations" / f"{platform.machine()}_{threads}t_{dtype}.json"
    engine, info = build_engine(settings.engine)
    tell(f"measuring {num_steps + num_steps // 2} steps, {PASSES} times each: {info.model}, {dtype}, {threads} threads")
    for line in write_calibration(engine, path, dtype, num_steps).lines():
        tell(line)


def write_calibration(engine: Engine, path: Path, dtype: str, num_steps: int) -> DeviceReport:
    """Fit `num_steps` random steps, judge the fit on half as many others in a run of their own, and write it."""
    rng, span = random.Random(0), span_of(engine)
    measure(engine.runner, rng, 4, span, passes=1)
    model = calibrate(measure(engine.runner, rng, num_steps, span))
    held_out = measure(engine.runner, rng, num_steps // 2, span)
    found = errors(model, held_out)
    store(path, model, found, dtype=dtype, num_threads=torch.get_num_threads(), machine=machine())
    return DeviceReport(model, found, len(held_out), path)


def span_of(engine: Engine) -> Span:
    """The steps that this engine's scheduler can make, up to contexts that take no minutes to measure."""
    limits = engine.scheduler.limits
    most = limits.max_context_tokens
    chunk = min(limits.max_step_tokens, most // 3)
    return Span(limits.max_seats, chunk, min(Span().max_context, most - chunk - 1))

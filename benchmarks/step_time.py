"""How wrong is the step-time model? On steps that it was not fitted to, and for the online fit on steps as they come.

Real weights, the runner's own steps over random shapes (`core_engine/llm/calibration.py`). With HEADRACE_BENCH_WRITE=1
it also writes `core_engine/llm/calibrations`, the coefficients that engines start from.
"""

from __future__ import annotations

import os
import platform
import random
from dataclasses import dataclass

import torch

from benchmarks.report import Row, options, publish
from core_engine.llm.calibration import Errors, Sample, calibrate, errors, measure, store
from core_engine.llm.step_time import CALIBRATIONS, StepTime, load_calibration
from core_engine.llm.step_time_fit import StepTimeFit
from core_engine.settings import EngineSettings
from headrace.bench import span_of
from headrace.engine import build_engine
from headrace.machine import machine


@dataclass(frozen=True, slots=True)
class Judged:
    """The calibration made here, and errors on held-out steps of three models."""

    model: StepTime
    calibrated: Errors  # the calibration, on each step's fastest run
    single: Errors  # the calibration, on single runs: the machine's noise is in them
    stored: Errors  # the committed calibration, on single runs
    online: Errors  # the online fit that started from the committed calibration, on single runs it had not seen


def stream(samples: list[Sample]) -> list[tuple[Sample, float]]:
    """Single runs in about the order in which they were made."""
    return [(sample, sample.seconds[index]) for index in range(len(samples[0].seconds)) for sample in samples]


def online_errors(start: StepTime, fitted: list[Sample], held_out: list[Sample]) -> Errors:
    """The fit observes the first run's single steps, then predicts each step of the other before it observes it."""
    fit = StepTimeFit(start)
    for sample, seconds in stream(fitted):
        fit.observe(sample.shape, seconds)
    predicted, actual = [], []
    for sample, seconds in stream(held_out):
        predicted.append(fit.current.predict(sample.shape))
        actual.append(seconds)
        fit.observe(sample.shape, seconds)
    return Errors.of(predicted, actual)


def judge(dtype: str, num_steps: int) -> Judged:
    engine, _ = build_engine(EngineSettings.model_validate({"weights": dtype, "kv_cache_bytes": 256 << 20}))
    rng, span = random.Random(0), span_of(engine)
    measure(engine.runner, rng, 4, span, passes=1)
    fitted, held_out = measure(engine.runner, rng, num_steps, span), measure(engine.runner, rng, num_steps // 2, span)
    model, committed = calibrate(fitted), load_calibration(dtype)
    singles = [seconds for _, seconds in stream(held_out)]

    def on_singles(each: StepTime) -> Errors:
        return Errors.of([each.predict(sample.shape) for sample, _ in stream(held_out)], singles)

    online = online_errors(committed, fitted, held_out)
    return Judged(model, errors(model, held_out), on_singles(model), on_singles(committed), online)


def row_of(dtype: str, judged: Judged) -> Row:
    a, b, c, d, e = judged.model.coefficients
    return {
        "precision": dtype,
        "a ms": a * 1e3,
        "b us/token": b * 1e6,
        "c us/row": c * 1e6,
        "d ns/context token": d * 1e9,
        "e ns/pair": e * 1e9,
        "median error": judged.calibrated.median,
        "p95 error": judged.calibrated.p95,
        "single runs": f"{judged.single.median:.3f} / {judged.single.p95:.3f}",
        "committed": f"{judged.stored.median:.3f} / {judged.stored.p95:.3f}",
        "online fit": f"{judged.online.median:.3f} / {judged.online.p95:.3f}",
    }


def main() -> None:
    args = options(__doc__ or "")
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    num_steps = 40 if args.quick else 200
    rows: list[Row] = []
    headline: dict[str, float] = {}
    for dtype in ("bfloat16",) if args.quick else ("bfloat16", "float32"):
        judged = judge(dtype, num_steps)
        rows.append(row_of(dtype, judged))
        for name, each in (("steptime", judged.calibrated), ("online", judged.online)):
            headline |= {f"{name}_median_error_{dtype}": each.median, f"{name}_p95_error_{dtype}": each.p95}
        if os.environ.get("HEADRACE_BENCH_WRITE"):
            path = CALIBRATIONS / f"{platform.machine()}_{threads}t_{dtype}.json"
            store(path, judged.model, judged.calibrated, dtype=dtype, num_threads=threads, machine=machine())
    overall = {name: headline[f"{name}_bfloat16"] for name in ("steptime_median_error", "steptime_p95_error")}
    title = f"Step-time model, SmolLM2-135M: {num_steps} random steps fitted, {num_steps // 2} held out; median / p95"
    publish(title, rows, overall | headline, args.json)


if __name__ == "__main__":
    main()

"""Calibrates the step-time model on this machine and says how wrong it is on steps that it was not fitted to.

With HEADRACE_BENCH_WRITE=1 it also writes `core_engine/llm/calibrations`, the coefficients that the engine starts from.
Real weights, the runner's own forward pass, random tokens and block tables.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.report import Row, machine, options, publish
from core_engine.contracts import Deadline, GenerateRequest, SamplingParams
from core_engine.llm.runner import Runner
from core_engine.llm.scheduler import Scheduled
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import CALIBRATIONS, NOTHING, StepShape, StepTime, chunk_shape
from core_engine.settings import EngineSettings
from headrace.engine import build_engine

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Sample:
    shape: StepShape
    seconds: float


def sequence_of(runner: Runner, rng: random.Random, context: int, new: int, *, is_decode: bool) -> Scheduled:
    """A sequence with `context` computed tokens in random blocks and `new` tokens to compute."""
    total = context + new
    prompt = total - 1 if is_decode else total
    ids = tuple(rng.randrange(1000, 40_000) for _ in range(total))
    asked = GenerateRequest(f"s{rng.random()}", ids[:prompt], SamplingParams(), Deadline.never())
    sequence = Sequence(asked, 0.0)
    sequence.token_ids = list(ids)
    sequence.num_computed_tokens = context
    num_blocks = runner.cache.shape[2] // runner.block_size
    sequence.block_table = rng.sample(range(1, num_blocks), -(-total // runner.block_size))
    return Scheduled(sequence, new, chunk_shape(context, new, is_decode=is_decode))


def random_step(runner: Runner, rng: random.Random) -> list[Scheduled]:
    """Decode rows, or a prefill chunk, or both, over the range that the scheduler makes."""
    kind = rng.choice(["decode", "decode", "prefill", "mixed"])
    step: list[Scheduled] = []
    if kind != "prefill":
        longest = int(2 ** rng.uniform(4, 10))
        num_rows = rng.choice([1, 1, 2, 4, 8, 16, 28])
        step += [sequence_of(runner, rng, rng.randint(8, longest), 1, is_decode=True) for _ in range(num_rows)]
    if kind != "decode":
        new = int(2 ** rng.uniform(0, 9))
        step.append(sequence_of(runner, rng, rng.choice([0, 0, int(2 ** rng.uniform(3, 10))]), new, is_decode=False))
    return step


def measure(runner: Runner, rng: random.Random, num_samples: int) -> list[Sample]:
    """Random steps; each is run once untimed (allocator, caches) and then `REPEATS` times, of which the fastest counts.

    The fastest, because a neighbour on the machine can only add time; what it adds is not the device's.
    """
    samples = []
    for _ in range(num_samples):
        step = random_step(runner, rng)
        shape = sum((item.shape for item in step), NOTHING)
        timed(runner, step)
        samples.append(Sample(shape, min(timed(runner, step) for _ in range(REPEATS))))
    return samples


def timed(runner: Runner, step: list[Scheduled]) -> float:
    """Seconds of one forward pass, building its tensors included."""
    start = time.perf_counter()
    with torch.inference_mode():
        runner.decoder.logits(runner.decoder.forward(runner.step_input(step), runner.cache))
    return time.perf_counter() - start


def terms(shape: StepShape) -> list[float]:
    return [1.0, shape.prefill_tokens, shape.decode_rows, shape.decode_context_tokens, shape.attended_pairs]


def fit(samples: list[Sample]) -> StepTime:
    """Non-negative least squares on relative errors (each row divided by its time), by active set.

    Source: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23; five unknowns, so that dropping the
    most negative one and solving again is enough.
    """
    matrix = np.array([terms(s.shape) for s in samples]) / np.array([[s.seconds] for s in samples])
    active = list(range(5))
    while True:
        solved, *_ = np.linalg.lstsq(matrix[:, active], np.ones(len(samples)), rcond=None)
        if solved.min() >= 0:
            break
        active.pop(int(solved.argmin()))
    values = dict(zip(active, solved.tolist(), strict=True))
    a, b, c, d, e = (values.get(index, 0.0) for index in range(5))
    return StepTime(a, b, c, d, e)


def errors(model: StepTime, samples: list[Sample]) -> list[float]:
    return sorted(abs(model.predict(s.shape) - s.seconds) / s.seconds for s in samples)


def bench(dtype: str, num_samples: int) -> tuple[Row, StepTime]:
    engine, _ = build_engine(EngineSettings.model_validate({"dtype": dtype, "kv_cache_bytes": 256 << 20}))
    rng = random.Random(0)
    measure(engine.runner, rng, 5)
    fitted, held_out = measure(engine.runner, rng, num_samples), measure(engine.runner, rng, num_samples // 2)
    model = fit(fitted)
    off = errors(model, held_out)
    row: Row = {
        "precision": dtype,
        "steps fitted / held out": f"{len(fitted)} / {len(held_out)}",
        "a ms": model.a * 1e3,
        "b us/token": model.b * 1e6,
        "c us/row": model.c * 1e6,
        "d ns/context token": model.d * 1e9,
        "e ns/pair": model.e * 1e9,
        "median error": statistics.median(off),
        "p95 error": off[int(0.95 * len(off))],
    }
    return row, model


def main() -> None:
    args = options(__doc__ or "")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows: list[Row] = []
    headline: dict[str, float] = {}
    for dtype in ("bfloat16",) if args.quick else ("bfloat16", "float32"):
        row, model = bench(dtype, 60 if args.quick else 200)
        rows.append(row)
        headline |= {f"{dtype}_median_error": row["median error"], f"{dtype}_p95_error": row["p95 error"]}
        if os.environ.get("HEADRACE_BENCH_WRITE"):
            threads = torch.get_num_threads()
            stored = dict(zip("abcde", model.coefficients, strict=True))
            stored |= {"dtype": dtype, "num_threads": threads, "machine": machine()}  # type: ignore[dict-item]
            path = CALIBRATIONS / f"x86_64_{threads}t_{dtype}.json"
            path.write_text(json.dumps(stored, indent=1) + "\n")
    publish(
        "Step-time model, SmolLM2-135M, error on held-out steps (1-28 decode rows, 1-512 prefill)",
        rows,
        headline,
        args.json,
    )


if __name__ == "__main__":
    main()

"""Measures how long the steps of one engine take and makes the calibration that its step-time model starts from.

Random steps over the range that a scheduler makes, by the runner's own `run`: real weights, random tokens in random
blocks. All of them run once per pass, in another order each time, and of a step's passes the fastest counts: what a
neighbour on the machine adds is not the device's, and it slows whole stretches down, so that repeats in a row are all
slow. On two cores the error of a bfloat16 fit was 22 % at the 95th percentile with repeats in a row, 9 % with passes.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core_engine.contracts import Deadline, GenerateRequest, SamplingParams
from core_engine.errors import ConfigurationError
from core_engine.llm.runner import Runner
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepShape, StepTime
from core_engine.llm.step_time_fit import fit_shapes

PASSES = 5
NOTHING_KNOWN = StepTime(0.0, 0.0, 0.0, 0.0, 0.0)
MIN_CONTEXT = 8


@dataclass(frozen=True, slots=True)
class Span:
    """How large random steps get: decode rows, prompt tokens in a chunk, tokens computed before."""

    max_rows: int = 32
    max_chunk: int = 512
    max_context: int = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """One step's shape and the seconds that it took in each pass."""

    shape: StepShape
    seconds: list[float] = field(default_factory=list)

    @property
    def fastest_s(self) -> float:
        return min(self.seconds)


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions, over steps."""

    median: float
    p95: float

    @classmethod
    def of(cls, predicted: list[float], actual: list[float]) -> Errors:
        off = sorted(abs(p - a) / a for p, a in zip(predicted, actual, strict=True))
        return cls(statistics.median(off), off[min(len(off) - 1, int(0.95 * len(off)))])


def measure(runner: Runner, rng: random.Random, num_steps: int, span: Span, passes: int = PASSES) -> list[Sample]:
    """`num_steps` random steps, each run once per pass; the first, untimed pass is the allocator's and the caches'."""
    plans = [random_plan(runner, rng, span) for _ in range(num_steps)]
    samples = [Sample(plan.shape) for plan in plans]
    order = list(range(num_steps))
    for _ in range(passes):
        rng.shuffle(order)
        _run(runner, plans[order[0]])
        for index in order:
            samples[index].seconds.append(_run(runner, plans[index]))
    return samples


def calibrate(samples: list[Sample]) -> StepTime:
    """The coefficients that the samples alone speak for."""
    shapes, seconds = [s.shape for s in samples], [s.fastest_s for s in samples]
    return fit_shapes(NOTHING_KNOWN, shapes, seconds, prior_sd=math.inf)


def errors(model: StepTime, samples: list[Sample]) -> Errors:
    """Of `model` on each step's fastest pass."""
    return Errors.of([model.predict(s.shape) for s in samples], [s.fastest_s for s in samples])


def store(path: Path, model: StepTime, found: Errors, **where: str | int) -> None:
    """Write what `load_calibration` reads, with its error and `where` it was made (dtype, num_threads, machine).

    Raises:
        ConfigurationError: the file cannot be written.
    """
    coefficients = dict(zip("abcde", model.coefficients, strict=True))
    content = coefficients | where | {"median_error": round(found.median, 4), "p95_error": round(found.p95, 4)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ConfigurationError(f"calibration {path} cannot be written: {error.strerror}") from None


def random_plan(runner: Runner, rng: random.Random, span: Span) -> StepPlan:
    """Decode rows, or a prefill chunk, or both; small ones as likely as large ones."""
    plan = StepPlan(NOTHING_KNOWN, max_tokens=span.max_rows + span.max_chunk)
    kind = rng.choice(["decode", "decode", "prefill", "mixed"])
    if kind != "prefill":
        longest = _log_uniform(rng, 2 * MIN_CONTEXT, span.max_context)
        for _ in range(rng.choice(list(_powers(span.max_rows)))):
            plan.add_decode(_sequence(runner, rng, rng.randint(MIN_CONTEXT, longest), 1, is_decode=True), 0.0)
    if kind != "decode":
        new = _log_uniform(rng, 1, span.max_chunk)
        context = rng.choice([0, 0, _log_uniform(rng, MIN_CONTEXT, span.max_context)])
        rest = rng.choice([0, 0, 0, 1])  # a chunk that is not the prompt's last samples no token
        plan.add_chunk(_sequence(runner, rng, context, new + rest, is_decode=False), new)
    return plan


def _sequence(runner: Runner, rng: random.Random, context: int, new: int, *, is_decode: bool) -> Sequence:
    """A sequence with `context` computed tokens in random blocks and `new` tokens to compute."""
    total = context + new
    ids = tuple(rng.randrange(runner.decoder.config.vocab_size) for _ in range(total))
    name = f"calibration-{rng.getrandbits(64):x}"
    asked = GenerateRequest(name, ids[: total - 1] if is_decode else ids, SamplingParams(), Deadline.never())
    sequence = Sequence(asked, 0.0)
    sequence.token_ids = list(ids)
    sequence.first_output = total - 1
    sequence.num_computed_tokens = context
    cache = runner.cache
    sequence.block_table = [rng.randrange(1, cache.num_blocks) for _ in range(-(-total // cache.block_size))]
    return sequence


def _run(runner: Runner, plan: StepPlan) -> float:
    start = time.perf_counter()
    runner.run(plan, _nothing)
    seconds = time.perf_counter() - start
    for item in plan.scheduled:
        runner.forget(item.sequence.id)
    return seconds


def _nothing() -> None:
    """Nobody waits between layers."""


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 and so on up to `most`, which is always among them; one row twice: a quiet engine's step."""
    yield 1
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most

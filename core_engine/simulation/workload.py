"""Trace rows as jobs for an engine of a given size: sped up, cut to what fits, and with the bound that callers set.

A job knows how many tokens it will really make; the scheduler sees only `max_tokens`, as in life.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.errors import ConfigurationError
from core_engine.simulation.trace import PREFIX_TOKENS, Trace, TraceRow

FILLER, EOS = 0, 1  # what a virtual step samples: any token, and the one that ends a sequence
FIRST_ID = 2  # each prompt begins with a token of its own, so that no two share a prefix by accident
FIRST_PREFIX_ID = 1 << 30  # tokens that stand for a trace's hash ids


@dataclass(frozen=True, slots=True)
class Job:
    """One request to come. `number` is its own; `prefix_ids` are those of its trace row."""

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    pool: Pool = Pool.INTERACTIVE
    tenant: str = "local"
    deadline_s: float = math.inf
    prefix_ids: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.pool}-{self.number}"

    def request(self) -> GenerateRequest:
        return GenerateRequest(
            attempt_id=self.id,
            prompt_token_ids=self._prompt(),
            sampling=SamplingParams(max_tokens=self.max_tokens),
            deadline=Deadline(self.deadline_s),
            pool=self.pool,
            tenant=self.tenant,
        )

    def _prompt(self) -> tuple[int, ...]:
        """Tokens that are equal to another job's exactly as far as their prefix ids are."""
        if not self.prefix_ids:
            own = FIRST_ID + 2 * self.number + (self.pool is Pool.BULK)
            return (own, *(FILLER,) * (self.prompt_tokens - 1))
        ids = [FIRST_PREFIX_ID + each for each in self.prefix_ids for _ in range(PREFIX_TOKENS)]
        ids += [FILLER] * (self.prompt_tokens - len(ids))
        return tuple(ids[: self.prompt_tokens])


@dataclass(frozen=True, slots=True)
class Shaping:
    """How a trace is fitted to an engine.

    Of the trace's own time, `duration_s` from `start_s` on is taken; then `speed` divides arrival times. `length_scale`
    multiplies both lengths. `known_lengths` tells the scheduler the true length; else every job asks for the most
    tokens that any of its trace makes.
    """

    max_context_tokens: int
    speed: float = 1.0
    start_s: float = 0.0
    duration_s: float = math.inf
    length_scale: float = 1.0
    known_lengths: bool = False

    def __post_init__(self) -> None:
        for name in ("speed", "duration_s", "length_scale"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} = {getattr(self, name)!r}, expected a number above 0")
        if self.max_context_tokens < 2:
            raise ConfigurationError(f"max_context_tokens = {self.max_context_tokens}, expected at least 2")


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival; `num_clipped` of them had to lose prompt or output tokens to fit the context."""

    jobs: tuple[Job, ...]
    num_clipped: int

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)


NO_WORK = Workload((), 0)


def interactive(trace: Trace, shaping: Shaping) -> Workload:
    """The jobs of a timed trace.

    Raises:
        ConfigurationError: the trace is a backlog, or nothing of it is within `duration_s`.
    """
    if not trace.is_timed:
        raise ConfigurationError(f"trace {trace.name} has no arrival times: it can only be a backlog (--bulk)")
    start_s, stop_s = shaping.start_s, shaping.start_s + shaping.duration_s
    rows = [row for row in trace.rows if row.arrival_s is not None and start_s <= row.arrival_s < stop_s]
    if not rows:
        raise ConfigurationError(f"trace {trace.name} has no request from {start_s:g} s to {stop_s:g} s of its time")
    return _fitted(rows, shaping, Pool.INTERACTIVE)


def backlog(trace: Trace, shaping: Shaping, seed: int) -> Workload:
    """All rows of a trace as bulk jobs that are there from the start, in an order shuffled by `seed`."""
    rows = list(trace.rows)
    random.Random(seed).shuffle(rows)
    return _fitted([replace(row, arrival_s=None) for row in rows], shaping, Pool.BULK)


def _fitted(rows: list[TraceRow], shaping: Shaping, pool: Pool) -> Workload:
    context, scale = shaping.max_context_tokens, shaping.length_scale
    outputs = [min(math.ceil(row.output_tokens * scale), context - 1) for row in rows]
    longest = max(outputs)
    jobs, num_clipped = [], 0
    for number, (row, output) in enumerate(zip(rows, outputs, strict=True)):
        wanted = math.ceil(row.prompt_tokens * scale)
        prompt = min(wanted, context - output)
        num_clipped += prompt < wanted or output < math.ceil(row.output_tokens * scale)
        bound = output if shaping.known_lengths else min(longest, context - prompt)
        arrival_s = 0.0 if row.arrival_s is None else (row.arrival_s - shaping.start_s) / shaping.speed
        jobs.append(Job(number, arrival_s, prompt, output, bound, pool, prefix_ids=row.prefix_ids))
    return Workload(tuple(jobs), num_clipped)

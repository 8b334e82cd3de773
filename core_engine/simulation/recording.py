"""What is noted while a simulation runs: instants of every attempt, gaps between tokens, tokens and rows per step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from core_engine.contracts import FinishReason, Pool
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.simulation.workload import Job

GAPS_PER_S = 1e5  # gaps between tokens are counted in bins of 10 us
REFUSED = "refused"  # outcome of a job that the scheduler would not take
TIMED, BACKLOG = "timed", "backlog"  # where a job came from


@dataclass(slots=True)
class Attempt:
    """One job on its way. `outcome` is a finish reason, `REFUSED`, or None while it runs. Instants are virtual."""

    job: Job
    tokens_left: int
    source: str = TIMED
    started_s: float = math.inf  # the begin of the first step that had any of it
    first_token_s: float | None = None
    last_token_s: float = 0.0
    outcome: str | None = None
    num_preemptions: int = 0
    wasted_tokens: int = 0
    cached_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        return self.job.output_tokens - self.tokens_left

    @property
    def is_finished(self) -> bool:
        return self.outcome in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.job.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between its tokens; None where there is no gap."""
        if self.first_token_s is None or self.completion_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.completion_tokens - 1)

    @property
    def e2el_s(self) -> float:
        return self.last_token_s - self.job.arrival_s

    def end(self, sequence: Sequence) -> None:
        """Keep what is wanted of a sequence that left, so that its tokens can go."""
        assert sequence.finish_reason is not None
        self.outcome = str(sequence.finish_reason)
        self.keep(sequence)

    def keep(self, sequence: Sequence) -> None:
        self.started_s = sequence.first_scheduled_s
        self.num_preemptions = sequence.num_preemptions
        self.wasted_tokens = sequence.wasted_tokens
        self.cached_tokens = sequence.num_cached_tokens


@dataclass(slots=True)
class PoolTotals:
    """Of one pool over all steps. `rows` counts sequences in steps, `steps` those steps that had any of this pool."""

    run_tokens: int = 0
    rows: int = 0
    steps: int = 0
    gaps: Counter[int] = field(default_factory=Counter)  # gaps between tokens, by bin


@dataclass(frozen=True, slots=True)
class Sample:
    """How full the engine was in one step: sequences in it by pool, sequences that wait, share of KV blocks held."""

    at_s: float
    interactive: int
    bulk: int
    waiting: int
    kv_share: float


@dataclass(slots=True)
class Recording:
    """All that a run leaves. `samples` is empty unless the run was asked to keep them."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    totals: dict[Pool, PoolTotals] = field(default_factory=lambda: {pool: PoolTotals() for pool in Pool})
    samples: list[Sample] = field(default_factory=list)
    end_s: float = 0.0
    busy_s: float = 0.0
    num_steps: int = 0
    num_forwarded: int = 0  # of the steps, those done many at once
    peak_kv_share: float = 0.0

    def step(self, plan: StepPlan, duration_s: float) -> None:
        """Count one step."""
        self.num_steps += 1
        self.busy_s += duration_s
        rows: Counter[Pool] = Counter()
        for item in plan.scheduled:
            pool = item.sequence.pool
            rows[pool] += 1
            self.totals[pool].run_tokens += item.num_tokens
        for pool, num_rows in rows.items():
            self.totals[pool].rows += num_rows
            self.totals[pool].steps += 1

    def token(self, attempt: Attempt, now: float) -> None:
        """Count the next token of an attempt, out at `now`."""
        attempt.tokens_left -= 1
        if attempt.first_token_s is None:
            attempt.first_token_s = now
        else:
            bins = self.totals[attempt.job.pool].gaps
            bins[round((now - attempt.last_token_s) * GAPS_PER_S)] += 1
        attempt.last_token_s = now

    def forwarded(self, sequences: list[Sequence], durations_s: list[float], now: float) -> None:
        """Count more steps, which ended at `now`, with a decode row of each of `sequences`."""
        num_steps = len(durations_s)
        self.num_steps += num_steps
        self.num_forwarded += num_steps
        self.busy_s += sum(durations_s)
        for pool, rows in Counter(sequence.pool for sequence in sequences).items():
            totals = self.totals[pool]
            totals.run_tokens += rows * num_steps
            totals.rows += rows * num_steps
            totals.steps += num_steps
            for duration_s in durations_s:
                totals.gaps[round(duration_s * GAPS_PER_S)] += rows
        for sequence in sequences:
            attempt = self.attempts[sequence.id]
            attempt.tokens_left -= num_steps
            attempt.last_token_s = now

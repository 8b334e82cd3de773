"""What a simulation measured, by the field's names, and how many requests met the SLO.

The SLO is relative: a request's TTFT and TPOT against what the same request takes alone on an idle engine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core_engine.contracts import Pool
from core_engine.llm.pacing import Objective
from core_engine.llm.step_time import StepTime
from core_engine.simulation.recording import GAPS_PER_S, REFUSED, Attempt, PoolTotals, Recording
from core_engine.simulation.workload import Job

ROUNDING_S = 1e-9  # a request alone takes exactly what it takes alone, whatever the order of additions


@dataclass(frozen=True, slots=True)
class Unloaded:
    """What a request takes alone: TTFT with its prompt in full steps, and the mean gap between its tokens."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Slo:
    """TTFT and TPOT that a request may take: `objective`'s multiples of its own on an idle engine."""

    objective: Objective
    step_time: StepTime
    max_step_tokens: int
    overhead_s: float = 0.0

    def unloaded(self, job: Job) -> Unloaded:
        num_steps = -(-job.prompt_tokens // self.max_step_tokens)
        ttft_s = self.step_time.unloaded_prefill_s(job.prompt_tokens, self.max_step_tokens)
        mean_context = job.prompt_tokens + job.output_tokens / 2  # of the rows that make the second to the last token
        tpot_s = self.step_time.a + self.step_time.c + self.step_time.d * mean_context
        return Unloaded(ttft_s + num_steps * self.overhead_s, tpot_s + self.overhead_s)

    def met(self, attempt: Attempt) -> bool:
        """Whether it finished, and within both limits."""
        return attempt.is_finished and self.met_ttft(attempt) and self.met_tpot(attempt)

    def met_ttft(self, attempt: Attempt) -> bool:
        """False as well if there never was a first token."""
        return attempt.ttft_s is not None and (
            attempt.ttft_s <= self.objective.ttft * self.unloaded(attempt.job).ttft_s + ROUNDING_S
        )

    def met_tpot(self, attempt: Attempt) -> bool:
        """True where there is no gap between two tokens."""
        return attempt.tpot_s is None or (
            attempt.tpot_s <= self.objective.tpot * self.unloaded(attempt.job).tpot_s + ROUNDING_S
        )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of some number of seconds each; NaN where there was none."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One pool. Rates are per virtual second of the whole run; `tokens_per_s` counts prompt and completion, less waste.

    `attainment`: share of all attempts that met the SLO, refused and unfinished ones included; `ttft_` and
    `tpot_attainment` those that met one half of it; `goodput_rps`: those that met it, per second. `mean_batch`:
    sequences of this pool per step that had any.
    """

    requests: int
    finished: int
    refused: int
    unfinished: int
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2el_s: Percentiles
    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    goodput_rps: float
    tokens_per_s: float
    completion_tokens_per_s: float
    mean_batch: float
    preemptions: int
    preempted_requests: int
    wasted_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    duration_s: float
    busy_share: float
    num_steps: int
    num_forwarded: int
    peak_kv_share: float
    interactive: PoolReport
    bulk: PoolReport

    def of(self, pool: Pool) -> PoolReport:
        return self.interactive if pool is Pool.INTERACTIVE else self.bulk


def report(recording: Recording, slo: Slo) -> Report:
    """The figures of one run."""
    duration_s = recording.end_s
    pools = {
        pool: _pool_report(
            [each for each in recording.attempts.values() if each.job.pool is pool],
            recording.totals[pool],
            slo,
            duration_s,
        )
        for pool in Pool
    }
    return Report(
        duration_s=duration_s,
        busy_share=_ratio(recording.busy_s, duration_s),
        num_steps=recording.num_steps,
        num_forwarded=recording.num_forwarded,
        peak_kv_share=recording.peak_kv_share,
        interactive=pools[Pool.INTERACTIVE],
        bulk=pools[Pool.BULK],
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of them lie, by linear interpolation between neighbours; NaN of none."""
    ranked = sorted(values)
    if not ranked:
        return math.nan
    place = share * (len(ranked) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def binned_percentile(bins: Counter[int], share: float) -> float:
    """As `percentile`, of counted gaps, in seconds; the value of the bin in which it falls."""
    place, seen = share * (bins.total() - 1), 0
    for value in sorted(bins):
        seen += bins[value]
        if seen > place:
            return value / GAPS_PER_S
    return math.nan


def _pool_report(attempts: Sequence[Attempt], totals: PoolTotals, slo: Slo, duration_s: float) -> PoolReport:
    finished = [each for each in attempts if each.is_finished]
    met = sum(map(slo.met, attempts))
    wasted = sum(each.wasted_tokens for each in attempts)
    return PoolReport(
        requests=len(attempts),
        finished=len(finished),
        refused=sum(each.outcome == REFUSED for each in attempts),
        unfinished=sum(each.outcome is None for each in attempts),
        ttft_s=_percentiles(each.ttft_s for each in attempts),
        tpot_s=_percentiles(each.tpot_s for each in finished),
        itl_s=Percentiles(binned_percentile(totals.gaps, 0.5), binned_percentile(totals.gaps, 0.99)),
        e2el_s=_percentiles(each.e2el_s for each in finished),
        attainment=_ratio(met, len(attempts)),
        ttft_attainment=_ratio(sum(map(slo.met_ttft, attempts)), len(attempts)),
        tpot_attainment=_ratio(sum(map(slo.met_tpot, attempts)), len(attempts)),
        goodput_rps=_ratio(met, duration_s),
        tokens_per_s=_ratio(totals.run_tokens - wasted, duration_s),
        completion_tokens_per_s=_ratio(sum(each.completion_tokens for each in attempts), duration_s),
        mean_batch=_ratio(totals.rows, totals.steps),
        preemptions=sum(each.num_preemptions for each in attempts),
        preempted_requests=sum(each.num_preemptions > 0 for each in attempts),
        wasted_tokens=wasted,
        cached_tokens=sum(each.cached_tokens for each in attempts),
    )


def _percentiles(values: Iterable[float | None]) -> Percentiles:
    known = [each for each in values if each is not None]
    return Percentiles(percentile(known, 0.5), percentile(known, 0.99))


def _ratio(count: float, whole: float) -> float:
    return count / whole if whole else math.nan

"""Arithmetic of the report, on cases worked out by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from core_engine.contracts import FinishReason, Pool
from core_engine.llm.pacing import Objective
from core_engine.llm.step_time import StepTime
from core_engine.simulation.recording import REFUSED, Attempt, Recording
from core_engine.simulation.report import Slo, binned_percentile, percentile, report
from core_engine.simulation.virtual_engine import VirtualEngine
from tests.core_engine.simulation.traces import device, job

# a step takes 10 ms, a prompt token 1 ms, a decode row 2 ms
SLO = Slo(Objective(ttft=5.0, tpot=2.0), StepTime(a=0.010, b=0.001, c=0.002, d=0.0, e=0.0), max_step_tokens=64)


def attempt(number: int, *, ttft_s: float, tpot_s: float = 0.0, tokens: int = 11) -> Attempt:
    """A finished one with a prompt of 90 tokens, arrived at second 1."""
    made = Attempt(job(number, 1.0, 90, tokens), tokens_left=0, outcome=FinishReason.STOP)
    made.first_token_s = 1.0 + ttft_s
    made.last_token_s = made.first_token_s + (tokens - 1) * tpot_s
    return made


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([4.0], 0.99, 4.0), ([1, 2, 3, 4, 5], 0.5, 3.0), ([5, 1, 3, 2, 4], 0.25, 2.0), ([0, 10], 0.99, 9.9)],
)
def test_a_percentile_lies_between_its_neighbours(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_a_percentile_of_counted_gaps_is_that_of_the_gaps() -> None:
    assert binned_percentile(Counter({1000: 98, 5000: 2}), 0.5) == pytest.approx(0.01)
    assert binned_percentile(Counter({1000: 98, 5000: 2}), 0.99) == pytest.approx(0.05)


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(binned_percentile(Counter(), 0.5))


def test_unloaded_times_are_those_of_a_request_alone() -> None:
    alone = SLO.unloaded(job(prompt=90, output=11))
    assert alone.ttft_s == pytest.approx(2 * 0.010 + 90 * 0.001)  # two steps of at most 64 tokens
    assert alone.tpot_s == pytest.approx(0.012)


@pytest.mark.parametrize("output", [1, 2, 3, 60])
def test_a_request_alone_takes_exactly_its_unloaded_time(output: int) -> None:
    on = device()
    work = job(prompt=150, output=output)
    (made,) = VirtualEngine(on.scheduler(), on.step_time, overhead_s=0.003).run([work]).attempts.values()
    slo = Slo(Objective(1.0, 1.0), on.step_time, on.limits.max_step_tokens, overhead_s=0.003)
    assert made.ttft_s == pytest.approx(slo.unloaded(work).ttft_s)
    if output > 1:
        assert made.tpot_s == pytest.approx(slo.unloaded(work).tpot_s)
    assert slo.met(made)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "met"),
    [(0.549, 0.0239, True), (0.551, 0.0239, False), (0.549, 0.0241, False), (0.551, 0.0241, False)],
)
def test_the_slo_is_five_and_two_times_unloaded(ttft_s: float, tpot_s: float, met: bool) -> None:
    assert SLO.met(attempt(0, ttft_s=ttft_s, tpot_s=tpot_s)) is met


def test_a_single_token_has_no_tpot_to_miss() -> None:
    made = attempt(0, ttft_s=0.1, tokens=1)
    assert made.tpot_s is None
    assert SLO.met(made)


def test_an_attempt_that_did_not_finish_met_nothing() -> None:
    late = attempt(0, ttft_s=0.1, tpot_s=0.01)
    late.outcome = FinishReason.DEADLINE
    assert not SLO.met(late)
    assert not SLO.met(Attempt(job(), tokens_left=4, outcome=REFUSED))


def test_attainment_counts_all_attempts_and_goodput_those_that_met() -> None:
    recording = Recording(end_s=10.0, busy_s=4.0)
    good, slow = attempt(0, ttft_s=0.2, tpot_s=0.012), attempt(1, ttft_s=0.2, tpot_s=0.5)
    refused, running = Attempt(job(2), 4, outcome=REFUSED), Attempt(job(3), 4)
    recording.attempts = {each.job.id: each for each in (good, slow, refused, running)}
    slow.num_preemptions, slow.wasted_tokens = 2, 30
    totals = recording.totals[Pool.INTERACTIVE]
    totals.run_tokens, totals.rows, totals.steps = 230, 40, 16
    made = report(recording, SLO)
    seen = made.interactive
    assert (seen.requests, seen.finished, seen.refused, seen.unfinished) == (4, 2, 1, 1)
    assert (seen.attainment, seen.ttft_attainment, seen.tpot_attainment) == (0.25, 0.5, 0.75)
    assert seen.goodput_rps == pytest.approx(0.1)
    assert seen.tokens_per_s == pytest.approx(20.0)  # 230 run, 30 of them in vain
    assert seen.completion_tokens_per_s == pytest.approx(2.2)
    assert seen.mean_batch == pytest.approx(2.5)
    assert (seen.preemptions, seen.preempted_requests, seen.wasted_tokens) == (2, 1, 30)
    assert seen.ttft_s.p50 == pytest.approx(0.2)
    assert seen.tpot_s.p50 == pytest.approx((0.012 + 0.5) / 2)
    assert made.busy_share == pytest.approx(0.4)


def test_pools_are_reported_apart() -> None:
    recording = Recording(end_s=1.0)
    recording.attempts = {"b": Attempt(job(0, pool=Pool.BULK), 4)}
    made = report(recording, SLO)
    assert (made.of(Pool.INTERACTIVE).requests, made.of(Pool.BULK).requests) == (0, 1)
    assert math.isnan(made.interactive.attainment)

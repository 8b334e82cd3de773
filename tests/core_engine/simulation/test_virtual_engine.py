"""The virtual engine: what it may not lose, and that doing steps at once changes nothing that can be seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, Pool
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime
from core_engine.simulation.presets import Device
from core_engine.simulation.recording import REFUSED, Recording
from core_engine.simulation.report import PoolReport, Report, Slo, report
from core_engine.simulation.virtual_engine import MAX_POLLS, Stalled, VirtualEngine
from core_engine.simulation.workload import Job
from tests.core_engine.simulation.traces import STEP_TIME, device, job, jobs

SEEN = ("ttft_s", "tpot_s", "itl_s", "e2el_s")


def run(
    on: Device, timed: Iterable[Job], backlog: Iterable[Job] = (), *, exact: bool = False, concurrency: int = 8
) -> Recording:
    engine = VirtualEngine(on.scheduler(), on.step_time, fast_forward=not exact)
    return engine.run(timed, backlog, concurrency)


def reported(on: Device, recording: Recording) -> Report:
    return report(recording, Slo(on.limits.objective, on.step_time, on.limits.max_step_tokens))


def close(forwarded: float, exact: float) -> bool:
    """Within 2 %, or one bin of a gap; both unknown where nothing was measured."""
    return (math.isnan(exact) and math.isnan(forwarded)) or math.isclose(forwarded, exact, rel_tol=0.02, abs_tol=1.1e-5)


def assert_alike(forwarded: PoolReport, exact: PoolReport) -> None:
    for name in SEEN:
        made, expected = getattr(forwarded, name), getattr(exact, name)
        assert close(made.p50, expected.p50), name
        assert close(made.p99, expected.p99), name
    assert close(forwarded.tokens_per_s, exact.tokens_per_s)
    assert (forwarded.finished, forwarded.attainment) == (exact.finished, exact.attainment)


@given(jobs())
def test_every_job_finishes_with_exactly_its_tokens(work: list[Job]) -> None:
    on = device()
    recording = run(on, work)
    assert {each.outcome for each in recording.attempts.values()} <= {FinishReason.STOP, FinishReason.LENGTH}
    assert all(each.tokens_left == 0 for each in recording.attempts.values())
    made = reported(on, recording).interactive
    computed = sum(each.prompt_tokens + each.output_tokens - 1 for each in work)  # the last one is never computed
    assert recording.totals[Pool.INTERACTIVE].run_tokens == computed + made.wasted_tokens - made.cached_tokens


@given(jobs(), jobs(Pool.BULK), st.integers(12, 60))
def test_fast_forward_differs_by_less_than_two_percent(work: list[Job], bulk: list[Job], num_blocks: int) -> None:
    """On few blocks too, where sequences are pre-empted."""
    on = device(num_blocks=max(num_blocks, 2 * 320 // 16))
    made, exact = (reported(on, run(on, work, bulk, exact=exact)) for exact in (False, True))
    assert_alike(made.interactive, exact.interactive)
    assert close(made.duration_s, exact.duration_s)
    assert close(made.busy_share, exact.busy_share)


@given(jobs())
def test_fast_forward_of_one_pool_makes_the_same_steps(work: list[Job]) -> None:
    on = device()
    made, exact = run(on, work), run(on, work, exact=True)
    assert exact.num_forwarded == 0
    assert made.num_steps == exact.num_steps
    assert made.end_s == pytest.approx(exact.end_s, rel=1e-9)


def test_a_long_completion_is_fast_forwarded() -> None:
    recording = run(device(), [job(output=60)])
    assert recording.num_steps == 60
    assert recording.num_forwarded > 50


def test_an_arrival_is_seen_at_the_same_step_as_without_fast_forward() -> None:
    on, work = device(), [job(0, output=200, max_tokens=200), job(1, arrival_s=0.5, output=5)]
    made, exact = (run(on, work, exact=exact).attempts["interactive-1"] for exact in (False, True))
    assert made.first_token_s == pytest.approx(exact.first_token_s)
    assert made.last_token_s == pytest.approx(exact.last_token_s)


def test_a_step_takes_what_the_model_predicts_and_the_overhead() -> None:
    model = StepTime(a=0.01, b=0.001, c=0.002, d=0.0, e=0.0)
    engine = VirtualEngine(device(step_time=model).scheduler(), model, overhead_s=0.5)
    (attempt,) = engine.run([job(prompt=8, output=3)]).attempts.values()
    assert attempt.ttft_s == pytest.approx(0.5 + 0.01 + 8 * 0.001)
    assert attempt.tpot_s == pytest.approx(0.5 + 0.01 + 0.002)
    assert engine.now == pytest.approx(attempt.last_token_s)


def test_idle_time_is_skipped_and_is_not_busy_time() -> None:
    recording = run(device(), [job(0), job(1, arrival_s=100.0)])
    assert recording.end_s > 100
    assert recording.busy_s < 1


class Watched(Scheduler):
    """Notes when it was asked for a step."""

    asked: list[float]

    def schedule(self, now: float) -> StepPlan:
        self.asked.append(now)
        return super().schedule(now)


@given(jobs(), jobs(Pool.BULK))
def test_the_clock_never_goes_back(work: list[Job], bulk: list[Job]) -> None:
    scheduler = device().scheduler()
    scheduler.__class__ = Watched
    assert isinstance(scheduler, Watched)
    scheduler.asked = []
    engine = VirtualEngine(scheduler, STEP_TIME)
    recording = engine.run(work, bulk)
    assert all(one < two for one, two in itertools.pairwise(scheduler.asked))
    for attempt in recording.attempts.values():
        if attempt.first_token_s is not None:
            assert attempt.job.arrival_s <= attempt.started_s < attempt.first_token_s <= attempt.last_token_s
    scheduler.blocks.check_integrity([s.block_table for s in scheduler.sequences()])


@given(jobs(), jobs(Pool.BULK))
def test_two_runs_are_the_same(work: list[Job], bulk: list[Job]) -> None:
    on = device(num_blocks=60)
    assert repr(reported(on, run(on, work, bulk))) == repr(reported(on, run(on, work, bulk)))


def test_a_backlog_keeps_its_number_in_the_engine_and_the_run_ends_with_the_timed_jobs() -> None:
    bulk = [job(n, pool=Pool.BULK, output=5, tenant="nightly") for n in range(1000)]
    recording = run(device(), [job(0), job(1, arrival_s=2.0)], bulk, concurrency=5)
    made = reported(device(), recording).bulk
    assert made.unfinished == 5
    assert 5 < made.requests < 1000
    assert recording.attempts["interactive-1"].is_finished


def test_a_backlog_alone_runs_to_its_end() -> None:
    recording = run(device(), [], [job(n, pool=Pool.BULK) for n in range(30)])
    assert all(each.is_finished for each in recording.attempts.values())
    assert len(recording.attempts) == 30


def test_until_ends_a_run_with_the_step_that_passes_it() -> None:
    on = device()
    bulk = (job(n, pool=Pool.BULK) for n in itertools.count())
    recording = VirtualEngine(on.scheduler(), on.step_time).run([], bulk, 8, until_s=1.0)
    assert 1.0 <= recording.end_s < 1.1


def test_what_the_scheduler_refuses_is_counted_and_the_run_goes_on() -> None:
    on = device()
    on = replace(on, limits=replace(on.limits, interactive=replace(on.limits.interactive, max_queued=2)))
    recording = run(on, [job(n) for n in range(5)])
    outcomes = [each.outcome for each in recording.attempts.values()]
    assert outcomes == [FinishReason.STOP] * 2 + [REFUSED] * 3


def test_a_job_past_its_deadline_ends_with_that_reason() -> None:
    recording = run(device(), [job(output=60, deadline_s=0.2)])
    (attempt,) = recording.attempts.values()
    assert attempt.outcome == FinishReason.DEADLINE
    assert 0 < attempt.completion_tokens < 60
    assert attempt.last_token_s == pytest.approx(0.2, abs=0.011)


@example(num_blocks=42)
@given(num_blocks=st.integers(42, 120))
def test_waste_and_pre_emptions_are_counted(num_blocks: int) -> None:
    on = device(num_blocks=num_blocks)
    recording = run(on, [job(n, prompt=30, output=100, max_tokens=120) for n in range(8)])
    made = reported(on, recording).interactive
    assert made.finished == 8
    assert made.preempted_requests <= made.preemptions <= 8
    assert (made.wasted_tokens > 0) <= (made.preemptions > 0)
    assert 0 < recording.peak_kv_share <= 1


def test_equal_prefixes_are_found_in_the_cache() -> None:
    shared = [job(n, arrival_s=float(n), prompt=64, prefix_ids=(1,)) for n in range(2)]
    recording = run(device(), shared)
    assert [each.cached_tokens for each in recording.attempts.values()] == [0, 63]


def test_a_scheduler_that_runs_nothing_is_an_error() -> None:
    class Idle(Scheduler):
        def schedule(self, now: float) -> StepPlan:
            return StepPlan(self.step_time, 0)

    scheduler = device().scheduler()
    scheduler.__class__ = Idle
    with pytest.raises(Stalled, match=f"at {MAX_POLLS / 1000:.0f}.000 s the scheduler holds 1 sequences"):
        VirtualEngine(scheduler, STEP_TIME).run([job()])


def test_jobs_out_of_order_are_our_own_error() -> None:
    with pytest.raises(AssertionError, match="in order of arrival"):
        run(device(), [job(0, arrival_s=1.0), job(1, arrival_s=0.5)])


def test_samples_show_each_step_and_the_idle_time_between() -> None:
    on = device()
    engine = VirtualEngine(on.scheduler(), on.step_time, fast_forward=False, keep_samples=True)
    recording = engine.run([job(0), job(1, arrival_s=9.0)])
    sizes = [sample.interactive for sample in recording.samples]
    assert sizes == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert [sample.kv_share > 0 for sample in recording.samples] == [size > 0 for size in sizes]

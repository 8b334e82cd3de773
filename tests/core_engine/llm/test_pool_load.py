"""What an engine tells of its load, and what the forecast from it is worth with the real scheduler."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.llm.admission import Work, predict_finish
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.messages import PoolLoad, Snapshot
from core_engine.llm.pool_load import RECENT_S, CompletionRatio, PrefillShare, load_of
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.step_time import StepTime
from tests.core_engine.llm.scheduling import step

MODEL = StepTime(a=0.03, b=7e-4, c=9e-4, d=7e-6, e=8e-7)
STEP_TOKENS = 64


def scheduler(seats: int = 4) -> Scheduler:
    pool = PoolLimits(0, seats, 1.0, 1000, 1_000_000)
    limits = SchedulerLimits(pool, pool, 100_000, STEP_TOKENS, math.inf)
    return Scheduler(limits, BlockPool(4096, 16), MODEL)


def request(name: str, prompt: int, most: int = 10) -> GenerateRequest:
    return GenerateRequest(name, (5,) * prompt, SamplingParams(max_tokens=most), Deadline.never())


def look(s: Scheduler) -> PoolLoad:
    load = s.load(Pool.INTERACTIVE)
    again = load_of(
        s.waiting[Pool.INTERACTIVE],
        s.running[Pool.INTERACTIVE],
        max_seats=load.max_seats,
        completion_ratio=load.completion_ratio,
        prefill_share=load.prefill_share,
    )
    assert load == again
    return load


def test_an_idle_pool_has_no_load() -> None:
    assert look(scheduler()) == PoolLoad(max_seats=4)


def test_what_waits_prefills_and_decodes_is_counted_where_it_stands() -> None:
    s = scheduler(seats=2)
    for name, prompt in (("short", 10), ("long", 100), ("waits", 300)):
        s.add(request(name, prompt), 0.0)
    load = look(s)
    assert (load.waiting, load.waiting_tokens, load.running) == (3, 410, 0)
    assert load.pairs_left == 10 * 11 // 2 + 100 * 101 // 2 + 300 * 301 // 2
    assert load.completion_tokens_left == 30
    step(s)  # all of the short prompt and 54 tokens of the long one
    load = look(s)
    assert (load.waiting, load.waiting_tokens, load.running) == (1, 300, 2)
    assert (load.prefill_tokens, load.decode_rows, load.decode_context_tokens) == (46, 1, 11)
    assert load.pairs_left == 46 * 54 + 46 * 47 // 2 + 300 * 301 // 2
    assert load.completion_tokens_left == 29


@given(sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 20)), min_size=1, max_size=12))
def test_a_pool_that_has_done_its_work_has_no_load_again(sizes: list[tuple[int, int]]) -> None:
    s = scheduler()
    for index, (prompt, most) in enumerate(sizes):
        s.add(request(f"r{index}", prompt, most), 0.0)
    assert look(s).completion_tokens_left == sum(most for _, most in sizes)
    while s.has_work:
        step(s)
    assert look(s) == PoolLoad(max_seats=4, prefill_share=look(s).prefill_share)


@given(prompt=st.integers(1, 600), most=st.integers(1, 30))
def test_a_request_alone_takes_what_was_forecast(prompt: int, most: int) -> None:
    """With the real scheduler, its steps on a clock that the step-time model moves."""
    s, now, first_s = scheduler(), 0.0, math.inf
    idle = Snapshot(interactive=look(s), coefficients=MODEL.coefficients, max_step_tokens=STEP_TOKENS)
    asked = request("alone", prompt, most)
    sequence = s.add(asked, now)
    while s.has_work:
        plan = s.schedule(now)
        now += plan.predicted_s
        tokens = {item.sequence.id: 5 for item in plan.scheduled if item.samples}
        s.commit(plan, tokens, frozenset(), now)
        if sequence.num_completion_tokens == 1:
            first_s = min(first_s, now)
    forecast = predict_finish(idle, Work.of(asked), most)
    assert forecast.first_token_s == pytest.approx(first_s)
    assert forecast.finish_s == pytest.approx(now)


def test_the_completion_ratio_starts_at_one_and_follows_what_ends() -> None:
    ratio = CompletionRatio()
    assert ratio.value == 1.0
    for _ in range(500):
        ratio.observe(10, 100)
    assert ratio.value == pytest.approx(0.1)
    for _ in range(500):
        ratio.observe(50, 100)
    assert ratio.value == pytest.approx(0.5, abs=1e-3)


def test_requests_for_one_token_say_little_about_long_ones() -> None:
    ratio = CompletionRatio()
    for _ in range(100):
        ratio.observe(1, 1)
        ratio.observe(100, 1000)
    assert ratio.value == pytest.approx(0.1, rel=0.02)


@given(share=st.floats(0, 1), step_s=st.floats(0.001, 0.5))
def test_the_prefill_share_is_that_of_the_last_seconds(share: float, step_s: float) -> None:
    seen, now = PrefillShare(), 0.0
    while now < 20 * RECENT_S:
        now += step_s
        seen.observe(now, share * step_s)
    assert seen.at(now) == pytest.approx(share, rel=0.2, abs=1e-6)


def test_the_prefill_share_fades_while_nothing_runs_and_time_never_goes_back() -> None:
    share = PrefillShare()
    assert share.at(5.0) == 0.0
    for second in range(1, 10):
        share.observe(second, 0.5)
    before = share.at(9.0)
    assert share.at(0.0) == before
    assert share.at(9.0 + 3 * RECENT_S) < before / 10

"""What a step may take so that nobody interactive falls behind, and what bulk gets of it."""

from __future__ import annotations

import math

import pytest

from core_engine.contracts import Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.pacing import CALM_S, QUIET_S, Objective, decode_room_s, first_token_due_s, prefill_spare_s
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import StepTime
from tests.core_engine.llm.scheduling import step
from tests.core_engine.llm.tiny import BULK, STEP_TIME, limits, request

OBJECTIVE = Objective(ttft=5.0, tpot=2.0)
ONE_STEP = STEP_TIME.a + STEP_TIME.c + 13 * STEP_TIME.d


def decoding(first_token_s: float, num_completion: int, prompt: int = 10) -> Sequence:
    made = Sequence(request(range(prompt)), 0.0)
    made.token_ids += [1] * num_completion
    made.num_computed_tokens = made.num_tokens - 1
    made.first_token_s = first_token_s
    return made


def test_a_first_token_is_due_after_so_many_times_what_it_takes_alone() -> None:
    alone_s = STEP_TIME.unloaded_prefill_s(10, 64)
    assert first_token_due_s(Sequence(request(range(10)), 3.0), OBJECTIVE, STEP_TIME, 64) == 3.0 + 5 * alone_s


def test_a_step_may_take_what_the_pace_of_the_most_urgent_one_leaves() -> None:
    room = decode_room_s([decoding(1.0, 3)], 1.0 + 2 * ONE_STEP, OBJECTIVE, STEP_TIME)
    assert room == pytest.approx(3 * 2 * ONE_STEP - 2 * ONE_STEP)
    late = decode_room_s([decoding(1.0, 3), decoding(0.0, 3)], 2.0, OBJECTIVE, STEP_TIME)
    assert late < 0
    assert decode_room_s([], 1.0, OBJECTIVE, STEP_TIME) == math.inf


def test_prompts_can_spare_what_is_left_after_the_work_before_them() -> None:
    first, second = Sequence(request(range(20)), 0.0), Sequence(request(range(20)), 0.0)
    work_s = STEP_TIME.unloaded_prefill_s(20, 64)
    first.due_s, second.due_s = 1.0, 1.0
    assert prefill_spare_s([first], 0.4, STEP_TIME, 64) == pytest.approx(0.6 - work_s)
    assert prefill_spare_s([first, second], 0.4, STEP_TIME, 64) == pytest.approx(0.6 - 2 * work_s)
    assert prefill_spare_s([], 0.4, STEP_TIME, 64) == math.inf


def scheduler() -> Scheduler:
    return Scheduler(limits(max_step_tokens=512), BlockPool(600, 4), STEP_TIME)


def test_bulk_alone_takes_the_whole_step_and_leaves_room_once_somebody_interactive_was_there() -> None:
    s = scheduler()
    s.add(request(range(240), 2, Pool.BULK), 0.0)
    assert step(s, 0.0).chunks[0].num_tokens == 240
    s.abort(next(s.sequences()))
    s.add(request([1], 1), 0.0)
    step(s, 0.0)
    s.add(request(range(240), 2, Pool.BULK), 0.1)
    plan = step(s, 0.1)
    assert plan.chunks[0].num_tokens < 240
    assert plan.predicted_s <= 4 * STEP_TIME.shortest()
    assert step(s, 0.2 + QUIET_S).chunks[0].num_tokens > plan.chunks[0].num_tokens


def test_bulk_beside_a_decoding_request_never_slows_it_below_its_pace() -> None:
    s, now, start = scheduler(), CALM_S + 1.0, CALM_S + 1.0
    interactive = s.add(request(range(8), 60), 0.0)  # it came a while ago: bulk need not keep ready for the next
    for n in range(BULK.max_seats):
        s.add(request([n] * 200, 30, Pool.BULK), now)
    bulk_tokens = 0
    while interactive.finish_reason is None:
        plan = step(s, now)
        bulk_tokens += sum(item.num_tokens for item in plan.scheduled if item.sequence.pool is Pool.BULK)
        now += plan.predicted_s
        if interactive.num_completion_tokens > 1:
            tpot = (now - interactive.first_token_s) / (interactive.num_completion_tokens - 1)
            assert tpot <= 2.0 * STEP_TIME.unloaded_decode_s(interactive.num_tokens)
    assert bulk_tokens > 100, "bulk got nothing: there was no pace to keep"
    assert now - start > 60 * STEP_TIME.unloaded_decode_s(8)


def test_bulk_keeps_its_steps_short_while_requests_keep_coming() -> None:
    def longest(came_s: float) -> float:
        s, now = scheduler(), 10.0
        s.add(request(range(8), 1), came_s)
        step(s, now)
        s.add(request([3] * 200, 2, Pool.BULK), now)
        return step(s, now).predicted_s

    assert longest(10.0) <= STEP_TIME.shortest() * 1.1
    assert longest(10.0 - CALM_S - 0.1) > STEP_TIME.shortest() * 1.5


def test_a_starved_bulk_sequence_starts_within_its_bound_under_endless_interactive_load() -> None:
    s, now, number = scheduler(), 0.0, 0
    bulk = s.add(request([9] * 8, 4, Pool.BULK), now)
    while bulk.num_computed_tokens == 0:
        while len(s.waiting[Pool.INTERACTIVE]) < 40:
            number += 1
            s.add(request([number % 90] * 50, 2), now)
        now += step(s, now).predicted_s
        assert now < 2 * BULK.max_starve_s
    assert now >= BULK.max_starve_s / 2, "it was not starved: this test shows nothing"


@pytest.mark.parametrize("every_step_s", [1e-5, 5e-5])
def test_a_short_prompt_is_computed_at_once_though_a_step_seems_to_cost_nothing(every_step_s: float) -> None:
    """What a fit to scores of one length makes of a device."""
    seems = StepTime(a=every_step_s, b=4e-4, c=5e-4, d=0.0, e=0.0)
    s = Scheduler(limits(max_step_tokens=512), BlockPool(600, 4), seems)
    s.add(request(range(14), 1), 0.0)
    assert step(s, 0.0).chunks[0].num_tokens == 14

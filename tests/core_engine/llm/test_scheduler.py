"""The scheduler's promises, on plain objects: no tensor, no clock but the number handed in."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Pool
from core_engine.errors import ConfigurationError, EngineRefused, InvalidRequest
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.pacing import CALM_S, Objective
from core_engine.llm.scheduler import GUARD_S, MAX_SKIPS, PoolLimits, Scheduler, SchedulerLimits, StepPlan
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import StepTime, chunk_shape
from tests.core_engine.llm.tiny import BULK, INTERACTIVE, STEP_TIME, limits, request

NO_EOS: frozenset[int] = frozenset()


def scheduler(
    *, num_blocks: int = 65, block_size: int = 4, within: SchedulerLimits | None = None, step_time: StepTime = STEP_TIME
) -> Scheduler:
    return Scheduler(within or limits(), BlockPool(num_blocks, block_size), step_time)


def step(s: Scheduler, now: float = 0.0) -> StepPlan:
    """One step as the engine makes it; the sampled token is always 7."""
    plan = s.schedule(now)
    s.commit(plan, {item.sequence.id: 7 for item in plan.scheduled if item.samples}, NO_EOS, now)
    s.blocks.check_integrity([q.block_table for q in s.sequences()])
    return plan


def guard(s: Scheduler, now: float) -> None:
    """As the engine does for a request with a budget of 50 ms."""
    s.guard(Pool.INTERACTIVE, Deadline(now + 0.05), now)


def ids(plan: StepPlan) -> list[str]:
    return [item.sequence.id for item in plan.scheduled]


def add(s: Scheduler, *requests: GenerateRequest, now: float = 0.0) -> list[Sequence]:
    return [s.add(each, now) for each in requests]


def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks() -> None:
    s = scheduler(within=limits(max_step_tokens=8))
    (sequence,) = add(s, request(range(20), max_tokens=2))
    assert [step(s).scheduled[0].num_tokens for _ in range(4)] == [8, 8, 4, 1]
    assert sequence.finish_reason is FinishReason.LENGTH
    assert not s.has_work


def test_interactive_decode_comes_before_interactive_prefill_before_bulk() -> None:
    patient = replace(BULK, max_starve_s=math.inf)  # not starved, and with room beside the others
    s = scheduler(within=replace(limits(max_step_tokens=6), objective=Objective(5000.0, 10000.0), bulk=patient))
    add(s, request(range(3), attempt_id="decoding"))
    step(s)
    add(s, request(range(9), pool=Pool.BULK, attempt_id="bulk"), request(range(4), attempt_id="prefilling"))
    assert ids(step(s, CALM_S + 0.1)) == ["decoding", "prefilling", "bulk"]
    assert ids(step(s, CALM_S + 0.2))[:2] == ["decoding", "prefilling"]


def test_an_interactive_prompt_takes_the_budget_that_bulk_wanted() -> None:
    s = scheduler(within=limits(max_step_tokens=8))
    add(s, request(range(40), pool=Pool.BULK, attempt_id="bulk"))
    step(s)
    add(s, request(range(8), attempt_id="interactive"))
    assert ids(step(s)) == ["interactive"]


@given(
    prompts=st.lists(st.tuples(st.integers(1, 60), st.sampled_from(Pool)), min_size=1, max_size=20),
    budget=st.integers(1, 64),
)
def test_the_token_budget_and_the_seats_hold_in_every_step(prompts: list[tuple[int, Pool]], budget: int) -> None:
    s = scheduler(num_blocks=400, within=limits(max_step_tokens=budget))
    for length, pool in prompts:
        add(s, request(range(length), max_tokens=5, pool=pool))
    for _ in range(2000):
        if not s.has_work:
            break
        plan = step(s)
        assert sum(item.num_tokens for item in plan.scheduled) <= budget
        assert len(s.running[Pool.INTERACTIVE]) <= INTERACTIVE.max_seats
        assert len(s.running[Pool.BULK]) <= BULK.max_seats
    assert not s.has_work


@given(length=st.integers(1, 60), bulk=st.integers(0, 6), cap_ms=st.floats(1, 60))
def test_no_step_is_predicted_over_the_cap_while_a_deadline_is_served(length: int, bulk: int, cap_ms: float) -> None:
    s = scheduler(within=limits(max_step_s=cap_ms / 1e3))
    for _ in range(bulk):
        add(s, request(range(length), pool=Pool.BULK))
    guard(s, 0.0)
    one_row = STEP_TIME.predict(chunk_shape(s.limits.max_context_tokens, 1, is_decode=True))
    for _ in range(40):
        plan = step(s, now=0.1)
        assert s.step_time.predict(plan.shape) <= max(cap_ms / 1e3, one_row) + 1e-12


def test_the_cap_is_lifted_after_the_guard_ends() -> None:
    s = scheduler()
    add(s, request(range(60), pool=Pool.BULK))
    guard(s, 0.0)
    assert step(s, now=0.1).scheduled[0].num_tokens < 60
    assert step(s, now=GUARD_S + 0.1).scheduled[0].num_tokens > 20


@pytest.mark.parametrize(
    ("pool", "deadline"),
    [(Pool.BULK, Deadline(0.05)), (Pool.INTERACTIVE, Deadline(30.0)), (Pool.INTERACTIVE, Deadline.never())],
)
def test_bulk_and_long_budgets_do_not_shorten_steps(pool: Pool, deadline: Deadline) -> None:
    s = scheduler()
    add(s, request(range(60), pool=Pool.BULK))
    s.guard(pool, deadline, 0.0)
    assert step(s, now=0.01).scheduled[0].num_tokens == 60


def test_with_a_cap_of_one_row_bulk_rows_take_turns() -> None:
    s = scheduler(within=limits(max_step_s=0.001))  # below the shortest step: one row each
    sequences = add(s, *(request([1, 2], max_tokens=50, pool=Pool.BULK) for _ in range(3)))
    for _ in range(3):
        step(s)
    guard(s, 0.0)
    ran = [ids(step(s, now=0.1)) for _ in range(6)]
    assert all(len(each) == 1 for each in ran)
    assert {each[0] for each in ran[:3]} == {q.id for q in sequences}


def test_bulk_that_waited_is_lifted_to_its_floor_and_never_above() -> None:
    s = scheduler(within=limits(max_step_s=0.001))
    add(s, *(request([1, 2], max_tokens=40, pool=Pool.BULK) for _ in range(4)))
    step(s)
    add(s, *(request([1, 2], max_tokens=30, attempt_id=f"i{i}") for i in range(4)), now=0.0)
    step(s)
    ran_bulk = 0
    for tick in range(100):
        now = 0.02 * tick
        guard(s, now)
        bulk = [item for item in step(s, now).scheduled if item.sequence.pool is Pool.BULK]
        assert len(bulk) <= BULK.min_seats
        ran_bulk += len(bulk)
    assert 2 <= ran_bulk <= 2.0 / BULK.max_starve_s + 1


def test_nothing_past_its_deadline_is_put_into_a_step() -> None:
    now = [0.0]
    s = scheduler()
    late = Deadline(1.0, lambda: now[0])
    waiting, running = add(
        s, request(range(70), deadline=late, max_tokens=50), request([1], deadline=late, max_tokens=50)
    )
    for tick in range(30):
        now[0] = 0.1 * tick
        plan = step(s, now[0])
        if now[0] >= 1.0:
            assert plan.scheduled == []
    assert waiting.finish_reason is running.finish_reason is FinishReason.DEADLINE
    assert s.blocks.num_held == 0


def test_the_earliest_deadline_takes_the_seat_first_and_without_one_the_objective_is_the_deadline() -> None:
    one_seat = PoolLimits(0, 1, 1.0, 64, 4096)
    s = scheduler(within=SchedulerLimits(one_seat, PoolLimits(0, 1, 1.0, 64, 4096), 256, 64, 0.015))
    add(
        s,
        request([1], max_tokens=1, attempt_id="no deadline"),
        request([1], max_tokens=1, attempt_id="late", deadline=Deadline(5.0, lambda: 0.0)),
        request([1], max_tokens=1, attempt_id="soon", deadline=Deadline(2.0, lambda: 0.0)),
    )
    assert [ids(step(s))[0] for _ in range(3)] == ["no deadline", "soon", "late"]


def test_a_sequence_takes_a_seat_only_if_it_is_certain_to_finish() -> None:
    s = scheduler(num_blocks=11, block_size=4)  # 10 blocks
    big, other = add(s, request(range(20), max_tokens=13), request(range(20), max_tokens=13))  # 8 blocks each
    for _ in range(200):
        step(s)
    assert big.finish_reason is other.finish_reason is FinishReason.LENGTH


def test_a_prompt_that_does_not_fit_does_not_block_those_behind_it_for_ever() -> None:
    s = scheduler(num_blocks=11, block_size=4)
    add(s, request(range(4), max_tokens=200 - 4 + 1 - 180, attempt_id="runs"))
    step(s)
    (big,) = add(s, request(range(30), max_tokens=11, attempt_id="big"))
    finished = 0
    for round_ in range(400):
        if not round_ % 2:
            add(s, request([1], max_tokens=2, attempt_id=f"small{round_}"), now=0.02 * round_)
        finished += sum(item.sequence.id.startswith("small") for item in step(s, 0.02 * round_).scheduled)
        if big.finish_reason:
            break
    assert finished > 1, "nobody overtook"
    assert big.num_skips <= MAX_SKIPS
    assert big.finish_reason is FinishReason.LENGTH


def test_a_bulk_pool_never_takes_more_than_its_share_of_the_cache() -> None:
    s = scheduler(num_blocks=41)
    add(s, *(request(range(20), max_tokens=10, pool=Pool.BULK) for _ in range(6)))
    for _ in range(20):
        step(s)
        assert s.blocks.held[Pool.BULK] <= BULK.max_kv_share * s.blocks.total


def test_bulk_leaves_the_interactive_floor_of_seats_free() -> None:
    s = scheduler(num_blocks=400)
    add(s, *(request([1], max_tokens=50, pool=Pool.BULK) for _ in range(20)))
    step(s)
    assert len(s.running[Pool.BULK]) == min(BULK.max_seats, s.limits.max_seats - INTERACTIVE.min_seats)
    add(s, *(request([1], max_tokens=50) for _ in range(INTERACTIVE.min_seats)))
    step(s)
    assert len(s.running[Pool.INTERACTIVE]) == INTERACTIVE.min_seats


def test_queue_bounds_refuse_and_name_what_is_full() -> None:
    tight = PoolLimits(0, 1, 1.0, max_queued=2, max_queued_tokens=10)
    s = scheduler(within=SchedulerLimits(tight, tight, 256, 64, 0.015))
    add(s, request([1] * 5), request([1] * 4))
    with pytest.raises(EngineRefused, match="2 requests wait"):
        add(s, request([1]))
    s = scheduler(within=SchedulerLimits(tight, tight, 256, 64, 0.015))
    add(s, request([1] * 9))
    with pytest.raises(EngineRefused, match="9 prompt tokens wait"):
        add(s, request([1] * 2))


def test_what_can_never_run_is_refused_at_once() -> None:
    s = scheduler(num_blocks=11, block_size=4)
    with pytest.raises(InvalidRequest, match="no tokens"):
        add(s, request([]))
    with pytest.raises(InvalidRequest, match=r"prompt \(38 tokens\) \+ max_tokens \(5\)"):
        add(s, request(range(38), max_tokens=5))
    with pytest.raises(EngineRefused, match="deadline passed"):
        add(s, request([1], deadline=Deadline(1.0)), now=2.0)


def test_abort_frees_everything_in_any_state_and_twice_is_a_no_op() -> None:
    s = scheduler()
    running, waiting = add(s, request(range(30)), request(range(3)))
    s.abort(waiting)
    step(s)
    s.abort(running)
    s.abort(running)
    assert not s.has_work
    assert s.blocks.num_free == s.blocks.total
    assert running.finish_reason is waiting.finish_reason is FinishReason.ABORT


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_mix_of_arrivals_aborts_and_deadlines_ends_with_every_request_accounted_for(seed: int) -> None:
    rng, s, now = random.Random(seed), scheduler(num_blocks=41), 0.0
    everyone: list[Sequence] = []
    for _ in range(120):
        now += rng.random() * 0.05
        if rng.random() < 0.5:
            deadline = Deadline(now + rng.random()) if rng.random() < 0.4 else Deadline.never()
            asked = request(range(rng.randint(1, 50)), rng.randint(1, 20), rng.choice(list(Pool)), deadline)
            try:
                everyone += add(s, asked, now=now)
            except (EngineRefused, InvalidRequest):
                continue
        if everyone and rng.random() < 0.15:
            s.abort(rng.choice(everyone))
        if rng.random() < 0.2:
            guard(s, now)
        for item in step(s, now).scheduled:
            assert item.sequence.deadline_s > now
    for _ in range(2000):
        if not s.has_work:
            break
        step(s, now := now + 0.05)
    assert not s.has_work
    assert all(q.finish_reason is not None for q in everyone)
    assert all(q.num_completion_tokens <= q.request.sampling.max_tokens for q in everyone)
    assert s.blocks.num_free == s.blocks.total
    assert math.isfinite(now)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (
            {"bulk": PoolLimits(8, 8, 1.0, 9, 99)},
            "interactive would never get a seat: .* is 8, expected less than",
        ),
        ({"interactive": PoolLimits(9, 4, 1.0, 9, 99)}, "bulk would never get a seat"),
        ({"bulk": PoolLimits(0, 8, 1.0, 9, 99, min_kv_share=1.0)}, "sum below 1"),
    ],
)
def test_floors_that_lock_the_other_pool_out_are_refused(wrong: dict[str, PoolLimits], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        replace(limits(), **wrong)  # type: ignore[arg-type]

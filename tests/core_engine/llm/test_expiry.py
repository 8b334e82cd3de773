"""Everything ends at its deadline, and nothing that never started stays past its queue's bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from core_engine.contracts import Deadline, FinishReason, Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.expiry import Expiry
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.scheduling import step
from tests.core_engine.llm.tiny import STEP_TIME, request


def sequence(deadline_s: float = math.inf, arrival_s: float = 0.0) -> Sequence:
    return Sequence(request([1], deadline=Deadline(deadline_s)), arrival_s)


def test_the_next_instant_is_the_earliest_of_what_still_stands() -> None:
    expiry, soon, late = Expiry(), sequence(1.0), sequence(5.0)
    expiry.watch(soon, math.inf)
    expiry.watch(late, math.inf)
    assert expiry.next_s() == 1.0
    soon.finish_reason = FinishReason.STOP
    assert expiry.next_s() == 5.0
    late.finish_reason = FinishReason.ABORT
    assert expiry.next_s() == math.inf


def test_a_deadline_ends_once_and_to_the_instant() -> None:
    expiry, one = Expiry(), sequence(1.0)
    expiry.watch(one, 0.5)
    assert list(expiry.due(0.4999)) == []
    assert [reason for _, reason in expiry.due(0.5)] == [FinishReason.SHED]
    one.finish_reason = FinishReason.SHED
    assert list(expiry.due(2.0)) == []


def test_what_has_started_is_not_too_old_for_the_queue_but_has_its_deadline() -> None:
    expiry, one = Expiry(), sequence(1.0)
    expiry.watch(one, 0.5)
    one.last_step = 3
    assert list(expiry.due(0.7)) == []
    assert [reason for _, reason in expiry.due(1.0)] == [FinishReason.DEADLINE]


def test_who_waits_longer_than_the_queue_may_hold_anything_is_sent_away_and_counted() -> None:
    pool = PoolLimits(0, 1, 1.0, 64, 4096, max_queue_s=2.0)
    s = Scheduler(SchedulerLimits(pool, replace(pool, max_queue_s=9.0), 256, 64, 0.015), BlockPool(65, 4), STEP_TIME)
    running, waiting = s.add(request([1], 200), 0.0), s.add(request([1], 200), 0.5)
    bulk = s.add(request([1], 200, Pool.BULK), 0.0)
    for tick in range(30):
        step(s, tick / 10)
    assert waiting.finish_reason is FinishReason.SHED
    assert running.finish_reason is bulk.finish_reason is None
    assert s.counters[Pool.INTERACTIVE].finished == {FinishReason.SHED: 1}


@pytest.mark.parametrize(("at_s", "runs"), [(0.98, True), (0.995, False), (1.0, False), (1.001, False)])
def test_a_prompt_is_run_only_if_its_first_token_can_still_come_before_its_deadline(at_s: float, runs: bool) -> None:
    pool = PoolLimits(0, 4, 1.0, 64, 4096)
    s = Scheduler(SchedulerLimits(pool, pool, 256, 64, 0.015), BlockPool(65, 4), STEP_TIME)
    s.add(request([1], 9, deadline=Deadline(1.0)), 0.0)
    plan = step(s, at_s)
    assert bool(plan.scheduled) is runs
    assert bool(plan.expired) is not runs


def test_what_runs_ends_at_its_deadline_and_not_before() -> None:
    pool = PoolLimits(0, 4, 1.0, 64, 4096)
    s = Scheduler(SchedulerLimits(pool, pool, 256, 64, 0.015), BlockPool(65, 4), STEP_TIME)
    s.add(request([1], 90, deadline=Deadline(1.0)), 0.0)
    for at_s in (0.5, 0.9, 0.999):
        assert step(s, at_s).scheduled
    assert step(s, 1.0).expired

"""The choice of drafts on a device that is only arithmetic: within its bounds, and as costs and acceptance ask for."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import Deadline, Pool
from core_engine.llm.limits import SchedulerLimits
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.speculation.proposer import Offer
from core_engine.llm.speculation.step_cost import StepCost
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from tests.core_engine.llm.scheduling import TOKEN
from tests.core_engine.llm.speculation.device import NO_EOS, device, speculation_of
from tests.core_engine.llm.tiny import BULK, INTERACTIVE, request


class Half(SyntheticAcceptance):
    """Its kind changes every time, so that its acceptance stays what is thought of it before anything is seen: 0.5."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self._kinds = count()

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        return Offer(at_most, next(self._kinds))


@dataclass(slots=True)
class Known(StepCost):
    """The cost of a draft's row, as a share of a step, is what a test says; nothing is learnt."""

    share: float

    def plain_s(self, num_rows: int, context_tokens: int) -> float:
        return 1.0

    def drafts_s(self, num_rows: int, most: int) -> list[float]:
        return [self.share * number for number in range(most + 1)]


def test_where_drafts_cannot_pay_hardly_any_are_tried() -> None:
    made = device(4, 0.05, speculation_of(0.05, 8, is_adaptive=True), row_s=0.002)
    rng = random.Random(0)
    for _ in range(100):
        made.step(rng)
    drafted = [made.step(rng).num_drafts for _ in range(400)]
    assert 0 < sum(map(bool, drafted)) <= 4
    assert max(drafted) == 4


def test_a_plan_without_drafts_is_the_plan_of_a_scheduler_without_speculation() -> None:
    made = device(4, 0.0, speculation_of(0.0, 8, is_adaptive=True), row_s=0.005)
    plain = device(4, 0.0, None)
    rng = random.Random(0)
    for _ in range(200):
        one, other = made.step(rng), plain.step(rng)
        if not one.num_drafts:
            assert one.variable_s == pytest.approx(sum(item.cost_s for item in one.decodes))
            assert [item.num_tokens for item in one.scheduled] == [item.num_tokens for item in other.scheduled]
            assert one.drafts_s == 0.0


@pytest.mark.parametrize("slowdown", [0.5, 3.0])
def test_a_device_that_is_slower_than_the_model_says_changes_nothing(slowdown: float) -> None:
    def drafted(factor: float) -> float:
        made = device(2, 0.8, speculation_of(0.8, 8, is_adaptive=True), row_s=0.0004)
        made.slowdown = factor
        rng = random.Random(0)
        for _ in range(300):
            made.step(rng)
        return sum(made.step(rng).num_drafts for _ in range(200)) / 200

    assert drafted(slowdown) == pytest.approx(drafted(1.0), rel=0.2)


def test_a_change_of_what_a_draft_takes_is_noticed_in_both_directions() -> None:
    made = device(2, 0.8, speculation_of(0.8, 8, is_adaptive=True), row_s=0.0004)
    rng = random.Random(0)

    def drafted(row_s: float, after: int) -> float:
        """Draft tokens per step, so many steps after a row has begun to take `row_s`."""
        made.row_s = row_s
        for _ in range(after):
            made.step(rng)
        return sum(made.step(rng).num_drafts for _ in range(100)) / 100

    assert drafted(0.0004, after=300) > 6
    assert drafted(0.004, after=400) < 0.2
    assert drafted(0.0004, after=600) > 6


def test_it_does_not_begin_for_a_gain_that_is_none_but_goes_on_while_there_is_any() -> None:
    speculation = Speculation(Half(), 1)
    made = device(1, 0.5, speculation)
    # half a token more for 49.8 % of a step's time is a gain of 0.1 %
    for share, expected in ((0.498, False), (0.3, True), (0.498, True), (0.503, False), (0.498, False)):
        speculation._cost, speculation._trials._budget_steps = Known(share), -1.0
        plan = made.scheduler.schedule(made.now)
        assert bool(plan.num_drafts) == expected, share
        speculation.propose(plan)
        ids = [item.sequence.id for item in plan.decodes]
        made.scheduler.commit(plan, dict.fromkeys(ids, TOKEN), NO_EOS, made.now)


@settings(max_examples=40)
@given(
    batch=st.just(0) | st.integers(1, 12),
    bulk=st.integers(0, 6),
    budget=st.integers(1, 40),
    cap_ms=st.sampled_from([1.0, 6.0, 12.0]),
    is_capped=st.booleans(),
    num_blocks=st.sampled_from([30, 60, 400]),
    bulk_tokens=st.sampled_from([4, 64]),
)
def test_drafts_take_what_is_left_of_tokens_cap_and_blocks_and_nobodys_row(
    batch: int, bulk: int, budget: int, cap_ms: float, is_capped: bool, num_blocks: int, bulk_tokens: int
) -> None:
    limits = SchedulerLimits(
        replace(INTERACTIVE, max_seats=12, max_queued=99),
        replace(BULK, max_seats=10, max_step_tokens=bulk_tokens),
        400,
        budget,
        cap_ms / 1e3,
    )
    made = device(0, 0.7, speculation_of(0.7, 6, is_adaptive=False), limits=limits, num_blocks=num_blocks)
    s = made.scheduler
    for number in range(batch + bulk):
        s.add(request([3, number], 30, Pool.INTERACTIVE if number < batch else Pool.BULK), 0.0)
    rng = random.Random(budget)
    for _ in range(60):
        if is_capped:
            s.guard(Pool.INTERACTIVE, Deadline(made.now + 0.5), made.now)
        plan = made.step(rng)
        assert plan.tokens_left >= 0
        assert sum(item.num_tokens for item in plan.scheduled) <= budget
        assert plan.variable_s == pytest.approx(sum(item.cost_s for item in plan.scheduled))
        if plan.num_drafts:
            assert plan.predicted_s <= plan.cap_s * (1 + 1e-9)
        mine = [item for item in plan.scheduled if item.sequence.pool is Pool.BULK]
        assert sum(item.num_tokens for item in mine) <= bulk_tokens or not any(item.draft for item in mine)
        assert [item.num_tokens for item in plan.decodes] == sorted(item.num_tokens for item in plan.decodes)


def test_a_sequence_never_gets_more_than_it_asked_for() -> None:
    made = device(0, 1.0, speculation_of(1.0, 8, is_adaptive=False))
    sequences = [made.scheduler.add(request([3, n], n), 0.0) for n in range(1, 12)]
    while made.scheduler.has_work:
        made.step(random.Random(0))
    assert [sequence.num_completion_tokens for sequence in sequences] == list(range(1, 12))

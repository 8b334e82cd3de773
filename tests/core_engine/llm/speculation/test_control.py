"""The choice of drafts on a device that is only arithmetic: never much worse than the better of always and never."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.contracts import Deadline, Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.pacing import Objective
from core_engine.llm.scheduler import Scheduler, SchedulerLimits
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.speculation.proposer import Offer
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime
from tests.core_engine.llm.scheduling import TOKEN, check
from tests.core_engine.llm.tiny import BULK, INTERACTIVE, request

DEVICE = StepTime(a=0.0028, b=0.00022, c=0.00075, d=2e-7, e=1e-8)  # about an int8 step of 135M weights on two cores
NO_EOS = frozenset[int]()


class Half(SyntheticAcceptance):
    """Its kind changes every time, so that its acceptance stays what is thought of it before anything is seen: 0.5."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self._kinds = count()

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        return Offer(at_most, next(self._kinds))


@dataclass(slots=True)
class Device:
    """Runs a scheduler's steps: each draft's row takes `row_s`, whatever the scheduler thinks; `noise` is relative."""

    scheduler: Scheduler
    synthetic: SyntheticAcceptance
    row_s: float = 0.0005
    noise: float = 0.0
    slowdown: float = 1.0  # against what the scheduler's step-time model says
    now: float = 0.0

    def step(self, rng: random.Random, *, is_checked: bool = True) -> StepPlan:
        s, speculation = self.scheduler, self.scheduler.speculation
        plan = s.schedule(self.now)
        accepted: dict[str, list[int]] = {}
        run_s = DEVICE.predict(plan.shape) * self.slowdown
        if speculation is not None and plan.num_drafts:
            speculation.propose(plan)
            for item in plan.decodes:
                start = item.sequence.num_completion_tokens
                assert start + 1 + len(item.draft) <= item.sequence.max_completion_tokens
                places = range(start, start + len(item.draft))
                right = next((n for n, at in enumerate(places) if not self.synthetic.accepts(item.sequence, at)), None)
                accepted[item.sequence.id] = item.draft[:right]
            run_s += self.row_s * plan.num_drafts * self.slowdown
        run_s *= 1 + rng.uniform(-self.noise, self.noise)
        if speculation is not None:
            speculation.learn(plan, accepted, run_s)
        self.now += run_s
        tokens = {item.sequence.id: TOKEN for item in plan.scheduled if item.samples}
        s.commit(plan, tokens, NO_EOS, self.now, accepted)
        if is_checked:
            check(s)
        return plan


def device(
    batch: int,
    acceptance: float,
    speculation: Speculation | None,
    *,
    row_s: float = 0.0005,
    noise: float = 0.0,
    pool: Pool = Pool.INTERACTIVE,
    limits: SchedulerLimits | None = None,
    num_blocks: int = 6000,
) -> Device:
    """`batch` sequences that decode."""
    seats = replace(INTERACTIVE, max_seats=64), replace(BULK, max_seats=62, max_kv_share=1.0)
    limits = limits or SchedulerLimits(*seats, 50_000, 4096, 0.015, Objective(1e3, 1e3))
    scheduler = Scheduler(limits, BlockPool(num_blocks, 16), DEVICE, speculation=speculation)
    for number in range(batch):
        scheduler.add(request([number + 3] * 8, 2000 + 10_000 // batch, pool, attempt_id=str(number)), 0.0)
    made = Device(scheduler, SyntheticAcceptance(acceptance), row_s, noise)
    made.step(random.Random(0))
    return made


def tokens_per_s(made: Device, num_steps: int) -> float:
    """After a while to learn, over so many steps."""
    rng = random.Random(1)
    for _ in range(60):
        made.step(rng, is_checked=False)
    counters, start = made.scheduler.counters[Pool.INTERACTIVE], made.now
    before = counters.generation_tokens
    for _ in range(num_steps):
        made.step(rng, is_checked=False)
    return (counters.generation_tokens - before) / (made.now - start)


def speculation_of(acceptance: float, max_tokens: int, *, is_adaptive: bool) -> Speculation:
    return Speculation(SyntheticAcceptance(acceptance), max_tokens, is_adaptive=is_adaptive)


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("row_s", [0.0003, 0.0012])
def test_adaptive_drafts_are_as_good_as_the_better_of_always_and_never(
    batch: int, acceptance: float, row_s: float
) -> None:
    num_steps = 1600 // batch + 100

    def speed(speculation: Speculation | None) -> float:
        return tokens_per_s(device(batch, acceptance, speculation, row_s=row_s, noise=0.05), num_steps)

    never = speed(None)
    always = max(speed(speculation_of(acceptance, length, is_adaptive=False)) for length in (1, 2, 4))
    adaptive = speed(speculation_of(acceptance, 8, is_adaptive=True))
    # over ten times as many steps it is 0.985 at the least; here chance has a say in what is accepted
    assert adaptive >= 0.95 * max(never, always), f"{adaptive:.1f} against {never:.1f} and {always:.1f}"


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
    assert drafted(0.0004, after=1500) > 6


def test_it_does_not_begin_for_a_gain_that_is_none_but_goes_on_while_there_is_any() -> None:
    speculation = Speculation(Half(), 1)
    made = device(1, 0.5, speculation)
    step_s = DEVICE.unloaded_decode_s(10)
    # half a token more for 49.8 % of a step's time is a gain of 0.1 %
    for share, expected in ((0.498, False), (0.3, True), (0.498, True), (0.503, False), (0.498, False)):
        speculation._cost._unit_s, speculation._credit_s = share * step_s, -1.0
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

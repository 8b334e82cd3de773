"""Devices that are only arithmetic, and speculation for them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from core_engine.contracts import Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.pacing import Objective
from core_engine.llm.scheduler import Scheduler, SchedulerLimits
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime
from tests.core_engine.llm.scheduling import TOKEN, check
from tests.core_engine.llm.tiny import BULK, INTERACTIVE, request

DEVICE = StepTime(a=0.0028, b=0.00022, c=0.00075, d=2e-7, e=1e-8)  # about an int8 step of 135M weights on two cores
NO_EOS = frozenset[int]()


@dataclass(slots=True)
class Device:
    """Runs a scheduler's steps: each draft's row takes `row_s`, whatever the scheduler thinks."""

    scheduler: Scheduler
    synthetic: SyntheticAcceptance
    row_s: float = 0.0005
    slowdown: float = 1.0  # against what the scheduler's step-time model says
    now: float = 0.0
    is_checked: bool = True  # the scheduler's own invariants, after every step

    def step(self, rng: random.Random) -> StepPlan:
        s, speculation = self.scheduler, self.scheduler.speculation
        plan = s.schedule(self.now)
        accepted: dict[str, list[int]] = {}
        if speculation is not None and plan.num_drafts:
            speculation.propose(plan)
            for item in plan.decodes:
                start = item.sequence.num_completion_tokens
                assert start + 1 + len(item.draft) <= item.sequence.max_completion_tokens
                places = range(start, start + len(item.draft))
                right = next((n for n, at in enumerate(places) if not self.synthetic.accepts(item.sequence, at)), None)
                accepted[item.sequence.id] = item.draft[:right]
        run_s = self.run_s(plan, rng)
        if speculation is not None:
            speculation.learn(plan, accepted, run_s)
        self.now += run_s
        tokens = {item.sequence.id: TOKEN for item in plan.scheduled if item.samples}
        s.commit(plan, tokens, NO_EOS, self.now, accepted)
        if self.is_checked:
            check(s)
        return plan

    def run_s(self, plan: StepPlan, rng: random.Random) -> float:
        """Seconds that the step takes."""
        return (DEVICE.predict(plan.shape) + self.row_s * plan.num_drafts) * self.slowdown


def device(
    batch: int,
    acceptance: float,
    speculation: Speculation | None,
    *,
    row_s: float = 0.0005,
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
    made = Device(scheduler, SyntheticAcceptance(acceptance), row_s)
    made.step(random.Random(0))
    return made


def speculation_of(acceptance: float, max_tokens: int, *, is_adaptive: bool) -> Speculation:
    return Speculation(SyntheticAcceptance(acceptance), max_tokens, is_adaptive=is_adaptive)

"""Any order of add, chunk, decode, finish, abort, pre-empt and expire leaves a scheduler whose books add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_engine.contracts import Deadline, Head, HeadKind, Pool
from core_engine.errors import EngineRefused, InvalidRequest
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.scheduling import check, step
from tests.core_engine.llm.tiny import STEP_TIME, request

BLOCK = 4
POOL = PoolLimits(1, 5, 1.0, max_queued=20, max_queued_tokens=600, min_kv_share=0.1, max_queue_s=30.0)


class Machine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(8, 60), budget=st.sampled_from([1, 3, 16, 64]), caches=st.booleans(), hopes=st.booleans()
    )
    def build(self, num_blocks: int, budget: int, caches: bool, hopes: bool) -> None:
        """`hopes`: completions have been short so far, so that more are let in than will find blocks."""
        bulk = replace(POOL, max_kv_share=0.8, max_seats=4)
        limits = SchedulerLimits(POOL, bulk, 200, budget, 0.015)
        hasher = PrefixHasher(BLOCK, "tiny") if caches else None
        self.scheduler = Scheduler(limits, BlockPool(num_blocks, BLOCK), STEP_TIME, hasher)
        for history in self.scheduler.seating._history.values():
            for _ in range(40 if hopes else 0):
                history.ended(1, 40)
        self.now = 0.0
        self.everyone: list[Sequence] = []
        self.lengths: dict[str, int] = {}
        self.longest_computed: dict[str, int] = {}

    @rule(
        prompt=st.integers(1, 60),
        shared=st.integers(0, 60),
        max_tokens=st.integers(1, 40),
        length=st.integers(1, 40),
        pool=st.sampled_from(Pool),
        tenant=st.sampled_from(["a", "b"]),
        budget_s=st.none() | st.floats(0.0, 2.0),
        is_head=st.booleans(),
    )
    def arrive(
        self,
        prompt: int,
        shared: int,
        max_tokens: int,
        length: int,
        pool: Pool,
        tenant: str,
        budget_s: float | None,
        is_head: bool,
    ) -> None:
        self.add(prompt, shared, max_tokens, length, pool, tenant, budget_s, is_head=is_head)

    def add(
        self,
        prompt: int,
        shared: int,
        max_tokens: int,
        length: int,
        pool: Pool,
        tenant: str,
        budget_s: float | None,
        *,
        is_head: bool,
    ) -> None:
        """`shared` tokens of the prompt are those of everybody; the completion ends after `length` tokens."""
        number = len(self.everyone) + 1000
        ids = [*range(min(shared, prompt)), *([number] * max(0, prompt - shared))]
        deadline = Deadline.never() if budget_s is None else Deadline(self.now + budget_s)
        asked = replace(request(ids, max_tokens, pool, deadline, can_end=True), tenant=tenant)
        if is_head:
            asked = replace(asked, head=Head(HeadKind.EMBED))
        try:
            sequence = self.scheduler.add(asked, self.now)
        except (EngineRefused, InvalidRequest):
            return
        self.everyone.append(sequence)
        self.lengths[sequence.id] = length

    @rule(elapsed_s=st.sampled_from([0.0, 0.01, 0.3, 5.0]))
    def run(self, elapsed_s: float) -> None:
        plan = step(self.scheduler, self.now, self._ends)
        assert all(item.sequence.deadline_s > self.now for item in plan.scheduled)
        assert sum(item.num_tokens for item in plan.scheduled) <= self.scheduler.limits.max_step_tokens
        assert len(plan.ids) == len(plan.scheduled), "a sequence is in the step twice"
        assert plan.variable_s == pytest.approx(sum(item.cost_s for item in plan.scheduled))
        assert math.isclose(plan.predicted_s, STEP_TIME.predict(plan.shape), rel_tol=1e-9)
        self.now += elapsed_s

    @rule(pool=st.sampled_from(Pool), count=st.integers(2, 6), prompt=st.integers(3, 20))
    def flood(self, pool: Pool, count: int, prompt: int) -> None:
        """Several at once that all get as long as they may."""
        for _ in range(count):
            self.add(prompt, 0, 40, 40, pool, "a", None, is_head=False)

    @precondition(lambda self: self.everyone)
    @rule()
    def run_on(self) -> None:
        for _ in range(8):
            self.run(0.01)

    @precondition(lambda self: self.everyone)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.scheduler.abort(data.draw(st.sampled_from(self.everyone)))

    def _ends(self, sequence: Sequence) -> bool:
        return sequence.num_completion_tokens + 1 >= self.lengths[sequence.id]

    @invariant()
    def books_add_up(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check(self.scheduler)
        for pool, counters in self.scheduler.counters.items():
            mine = [q for q in self.everyone if q.pool is pool]
            assert counters.preemptions == sum(q.num_preemptions for q in mine)
            assert counters.preemptions <= len(mine), "somebody was pre-empted twice"
            assert counters.wasted_tokens == sum(q.wasted_tokens for q in mine)
            assert counters.computed_tokens == sum(q.num_run_tokens for q in mine)
            assert counters.generation_tokens == sum(q.num_completion_tokens for q in mine)
            held = self.scheduler.blocks.held[pool]
            assert held <= self.scheduler.limits.of(pool).max_kv_share * self.scheduler.blocks.total

    @invariant()
    def progress_is_monotone(self) -> None:
        for q in getattr(self, "everyone", ()):
            assert q.num_tokens_once_computed >= self.longest_computed.get(q.id, 0)
            self.longest_computed[q.id] = q.num_tokens_once_computed

    def teardown(self) -> None:
        """Whatever is left is finished: nothing waits for ever, and every block comes back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(6000):
            if not self.scheduler.has_work:
                break
            self.run(0.02)
        assert not self.scheduler.has_work
        assert all(q.finish_reason is not None for q in self.everyone)
        assert self.scheduler.blocks.num_held == 0


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

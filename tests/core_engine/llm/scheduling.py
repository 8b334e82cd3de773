"""Drives a scheduler as an engine would, without a model: the sampled token is always the same but for the end."""

from __future__ import annotations

import math
from collections.abc import Callable

from core_engine.llm.scheduler import Scheduler, StepPlan
from core_engine.llm.sequence import Sequence

TOKEN, END = 7, 2


def step(s: Scheduler, now: float = 0.0, ends: Callable[[Sequence], bool] = lambda _: False) -> StepPlan:
    """One step; the block pool adds up after it. `ends` says whose next token is the end of its completion."""
    plan = s.schedule(now)
    sampling = [item.sequence for item in plan.scheduled if item.samples and item.sequence.request.head is None]
    s.commit(plan, {q.id: END if ends(q) else TOKEN for q in sampling}, frozenset({END}), now + plan.predicted_s)
    check(s)
    return plan


def run(s: Scheduler, ends: Callable[[Sequence], bool] = lambda _: False, max_steps: int = 2000) -> None:
    """Steps until nothing is left to do."""
    for _ in range(max_steps):
        if not s.has_work:
            return
        step(s, ends=ends)
    raise AssertionError(f"not finished after {max_steps} steps")


def check(s: Scheduler) -> None:
    """Blocks, counters and queues add up, whoever holds what."""
    everyone = list(s.sequences())
    s.blocks.check_integrity([q.block_table for q in everyone])
    shares = sum(s.blocks.share_of(q.block_table) for q in everyone)
    assert math.isclose(shares, s.blocks.num_held, abs_tol=1e-6), "shared blocks are counted twice, or not at all"
    size = s.blocks.block_size
    assert all(len(q.block_table) * size >= q.num_computed_tokens for q in everyone)
    for pool, counters in s.counters.items():
        here = [q for q in everyone if q.pool is pool]
        assert counters.admitted == sum(counters.finished.values()) + len(here)
        assert len(here) == len(s.waiting[pool]) + len(s.running[pool])
        assert s.waiting[pool].num_tokens == sum(q.num_uncomputed_tokens for q in s.waiting[pool])
        assert all(q.finish_reason is None for q in here)
        waste = [len(q.block_table) * size - q.num_computed_tokens for q in s.running[pool]]
        assert all(0 <= slots <= size for slots in waste), "more than one block of a sequence is allocated but unused"

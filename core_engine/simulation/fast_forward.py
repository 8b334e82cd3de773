"""Identical decode steps done at once, so that an hour of trace is simulated in a minute.

A step is certain to be repeated while every sequence in the engine decoded one token in it, none of them ends, each
finds the blocks that it grows into, and nobody arrives or expires. Steps are counted one by one, each a little longer
than the one before by its rows' one more token of context, so nothing is rounded. While somebody waits, steps are made
one by one: he may get in as soon as the scheduler expects to have blocks for him.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from core_engine.contracts import Pool
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.step_plan import Scheduled, StepPlan
from core_engine.llm.waiting_queue import COMPLETION_WEIGHT
from core_engine.simulation.recording import Attempt
from core_engine.simulation.workload import FILLER


class FastForward:
    """Says how many steps like the last one may be done at once, and does them to one scheduler."""

    def __init__(self, scheduler: Scheduler, attempts: Mapping[str, Attempt]) -> None:
        self._scheduler = scheduler
        self._attempts = attempts

    def certain_steps(self, plan: StepPlan) -> int:
        """How many steps like this committed one are certain to follow, time left aside."""
        scheduler = self._scheduler
        if plan.chunks or len(plan.decodes) != sum(map(len, scheduler.running.values())):
            return 0
        if any(map(len, scheduler.waiting.values())):
            return 0
        if any(item.sequence.finish_reason is not None for item in plan.decodes):
            return 0
        until_end = min(self._attempts[item.sequence.id].tokens_left for item in plan.decodes) - 1
        return min(until_end, self._until_full(plan.decodes))

    def longest_s(self) -> float:
        """Seconds that may be done at once: less than after which the scheduler thinks that bulk is starved."""
        scheduler = self._scheduler
        return scheduler.limits.bulk.max_starve_s / 2 if scheduler.running[Pool.BULK] else 1e9

    def advance(self, plan: StepPlan, num_steps: int) -> None:
        """Leave the scheduler as `num_steps` more steps of this plan would have left it."""
        scheduler = self._scheduler
        scheduler.num_steps += num_steps
        for item in plan.decodes:
            sequence = item.sequence
            has_blocks = scheduler.seating.grow(sequence, sequence.num_tokens + num_steps - 1)
            assert has_blocks, f"{sequence.id} found no blocks for {num_steps} steps that were certain"
            sequence.advance(num_steps)
            sequence.token_ids.extend([FILLER] * num_steps)
            sequence.first_output = sequence.num_tokens - 1
            sequence.last_step = scheduler.num_steps - 1
            scheduler.seating.prefixes.publish(sequence)
            scheduler.waiting[sequence.pool].charge(sequence.tenant, num_steps * COMPLETION_WEIGHT)
        for pool, rows in Counter(item.sequence.pool for item in plan.decodes).items():
            scheduler.counters[pool].computed_tokens += rows * num_steps
            scheduler.counters[pool].generation_tokens += rows * num_steps

    def _until_full(self, decodes: list[Scheduled]) -> int:
        """Steps for which all rows find blocks: each takes at most one in every `block_size` steps."""
        blocks, seating = self._scheduler.blocks, self._scheduler.seating
        each = blocks.num_free // len(decodes)  # blocks that every row could take
        for pool in Pool:
            rows = [item.sequence for item in decodes if item.sequence.pool is pool]
            if rows:
                available = seating.most_tokens(rows[0]) // blocks.block_size - len(rows[0].block_table)
                each = min(each, available // len(rows))
        return each * blocks.block_size

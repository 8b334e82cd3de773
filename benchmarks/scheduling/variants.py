"""Our scheduler with one of its decisions replaced, so that each can be seen by itself."""

from __future__ import annotations

from core_engine.llm.block_pool import BlockPool
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.seating import Seating
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime
from core_engine.simulation.presets import Device


class LastVictim(Seating):
    """The victim is the sequence that was seated last."""

    def _victim(
        self,
        pool: object,
        plan: StepPlan,
        step_time: StepTime,
        num_needed: int,
        *,
        above_floor: bool = False,
    ) -> Sequence | None:
        movable = [s for s in self.holders() if s.has_seat and s.id not in plan.ids and not s.is_protected]
        return movable[-1] if movable else None


class PromptFits(Seating):
    """A seat is given as soon as blocks for the prompt are free; nobody asks for how long they will do."""

    def _lasts(self, sequence: Sequence, found: list[int]) -> bool:
        return sequence.num_preemptions == 0 or super()._lasts(sequence, found)


def with_seating(device: Device, seating: type[Seating]) -> Scheduler:
    """A scheduler on `device` whose seats and blocks are handed out by `seating`."""
    blocks, hasher = BlockPool(device.num_blocks, device.block_size), PrefixHasher(device.block_size, device.name)
    scheduler = Scheduler(device.limits, blocks, device.step_time, hasher)
    scheduler.seating = seating(device.limits, blocks, hasher)
    scheduler.waiting, scheduler.running = scheduler.seating.waiting, scheduler.seating.running
    scheduler.counters = scheduler.seating.counters
    return scheduler

"""Our scheduler with a fixed pace of bulk: so many bulk tokens per step, whatever the interactive pool does.

So that the comparison is fair, interactive prompts leave the cap its place beside the decode rows: they are paced by
the TPOT objective less what a step's bulk takes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from core_engine.llm.block_pool import BlockPool
from core_engine.llm.pacing import Pacer
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.simulation.presets import Device

BULK_CONTEXT = 2048  # tokens of a bulk row's context, about


class FixedPace(Pacer):
    """The cap is the bulk pool's `max_step_tokens`; what interactive sequences can spare is not asked."""

    def bulk_room_s(self, plan: StepPlan, decoding: list[Sequence], prompts: list[Sequence] | None) -> float:
        return math.inf


def fixed_cap(device: Device, bulk_cap: int) -> Scheduler:
    objective, step_time = device.limits.objective, device.step_time
    bulk_s = bulk_cap * max(step_time.b, step_time.decode_cost(BULK_CONTEXT))
    paced = replace(objective, tpot=max(1.0, objective.tpot - bulk_s / step_time.shortest()))
    bulk = replace(device.limits.bulk, max_step_tokens=bulk_cap)
    blocks, hasher = BlockPool(device.num_blocks, device.block_size), PrefixHasher(device.block_size, device.name)
    limits = replace(device.limits, bulk=bulk, objective=paced)
    pacer = FixedPace(paced, limits.max_step_tokens)
    return Scheduler(limits, blocks, step_time, hasher, pacer=pacer)

"""What a scheduler may hand out: floors and ceilings per pool, and the bounds of one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from core_engine.contracts import Pool
from core_engine.errors import ConfigurationError
from core_engine.llm.pacing import Objective


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Seats are sequences in a step; KV shares are of all blocks. Floors are kept free of the other pool."""

    min_seats: int
    max_seats: int
    max_kv_share: float
    max_queued: int
    max_queued_tokens: int
    min_kv_share: float = 0.0
    min_step_tokens: int = 16  # what a starved pool gets of a step
    max_step_tokens: int = 1 << 30
    max_queue_s: float = math.inf  # who has waited longer without ever having a seat is sent away
    max_starve_s: float = 2.0  # a pool that has not run for so long is lifted to its floor


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    interactive: PoolLimits
    bulk: PoolLimits
    max_context_tokens: int
    max_step_tokens: int
    max_step_s: float
    objective: Objective = field(default_factory=Objective)
    tenant_weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pool, other in ((Pool.INTERACTIVE, self.bulk), (Pool.BULK, self.interactive)):
            if other.min_seats >= self.max_seats:
                raise ConfigurationError(
                    f"{pool} would never get a seat: min_seats of the other pool is {other.min_seats}, expected "
                    f"less than the {self.max_seats} seats of both"
                )
        floors = self.interactive.min_kv_share, self.bulk.min_kv_share
        if sum(floors) >= 1:
            raise ConfigurationError(
                f"min_kv_share of the pools is {floors[0]} and {floors[1]}, expected a sum below 1"
            )

    @property
    def max_seats(self) -> int:
        return max(self.interactive.max_seats, self.bulk.max_seats)

    def of(self, pool: Pool) -> PoolLimits:
        return self.interactive if pool is Pool.INTERACTIVE else self.bulk

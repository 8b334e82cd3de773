"""Devices to simulate: step time, KV blocks and limits of an engine that nobody has to own.

The coefficients of `h200-like` are derived, not measured: the calibration's own file says from what.
"""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.errors import ConfigurationError
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.step_time import PRESETS as CALIBRATIONS
from core_engine.llm.step_time import StepTime, load_calibration

H200_KV_BYTES, H200_KV_BYTES_PER_TOKEN = 100e9, 131_072  # of 141 GB: 16 are weights; 8B model, bfloat16, 8 KV heads
UNBOUNDED = 10**9  # a queue that no trace fills: whom admission refuses is not what is simulated here


@dataclass(frozen=True, slots=True)
class Device:
    """What an engine is, for its scheduler: how long a step takes, and how much fits."""

    name: str
    step_time: StepTime
    limits: SchedulerLimits
    num_blocks: int
    block_size: int = 16

    def scheduler(self) -> Scheduler:
        """A new one, with the prefix cache on."""
        blocks, hasher = BlockPool(self.num_blocks, self.block_size), PrefixHasher(self.block_size, self.name)
        return Scheduler(self.limits, blocks, self.step_time, hasher)


def pool_limits(min_seats: int, max_seats: int, max_kv_share: float) -> PoolLimits:
    """Seats and KV of a pool with a queue without bounds."""
    return PoolLimits(min_seats, max_seats, max_kv_share, max_queued=UNBOUNDED, max_queued_tokens=UNBOUNDED)


def h200_like() -> Device:
    """One H200 with an 8-billion-parameter Llama in bfloat16."""
    step_time = load_calibration("bfloat16", CALIBRATIONS / "h200_like_bfloat16_8b.json")
    limits = SchedulerLimits(
        interactive=pool_limits(32, 256, 1.0),
        bulk=pool_limits(8, 224, 0.75),
        max_context_tokens=131_072,
        max_step_tokens=4096,
        max_step_s=0.015,
    )
    return Device("h200-like", step_time, limits, num_blocks=int(H200_KV_BYTES / H200_KV_BYTES_PER_TOKEN / 16))


def cpu(step_time: StepTime) -> Device:
    """SmolLM2-135M on a CPU with this calibration: the engine's default settings."""
    limits = SchedulerLimits(
        interactive=pool_limits(4, 32, 1.0),
        bulk=pool_limits(1, 28, 0.75),
        max_context_tokens=4096,
        max_step_tokens=512,
        max_step_s=0.015,
    )
    return Device("this CPU", step_time, limits, num_blocks=1456)  # 512 MiB at 23,040 bytes a token


PRESETS = {"h200-like": h200_like}


def preset(name: str) -> Device:
    """The preset of that name.

    Raises:
        ConfigurationError: an unknown name; the sentence lists the known ones.
    """
    if name not in PRESETS:
        raise ConfigurationError(f"preset {name!r} is unknown; known: {', '.join(sorted(PRESETS))}")
    return PRESETS[name]()

"""What every part gives back, and how it makes an engine to simulate."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.report import Row
from core_engine.simulation.presets import Device
from core_engine.simulation.report import Slo
from core_engine.simulation.virtual_engine import StepScheduler, VirtualEngine


@dataclass(frozen=True, slots=True)
class Part:
    """The table of one part and its share of the headline."""

    title: str
    rows: list[Row]
    headline: dict[str, float] = field(default_factory=dict)


def slo_of(device: Device) -> Slo:
    return Slo(device.limits.objective, device.step_time, device.limits.max_step_tokens)


def virtual(device: Device, scheduler: StepScheduler, *, exact: bool = False) -> VirtualEngine:
    """`exact`: every step by itself, and a sample of each."""
    return VirtualEngine(scheduler, device.step_time, fast_forward=not exact, keep_samples=exact)

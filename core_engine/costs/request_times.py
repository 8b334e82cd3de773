"""Where the time of each request went, by stage, from what its caller and the engine have told of it.

A door's fact has the stages of a prediction; the engine's has the queue, prefill and decode of a text. The stages of a
request always add up to its whole time: what no stage was told of is the front end's (reading, checking, tokenising,
transport), and a request of which nothing was told is `unknown`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from core_engine.contracts import Path, Rung, StageTimes
from core_engine.costs.facts import CallerFact, DeviceFact, Fact


class Stage(enum.StrEnum):
    """`unanswered`: waiting for a model that did not answer, which no fact splits into queue and work."""

    FRONT_END = "front_end"
    FEATURES = "features"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    SCORER = "scorer"
    UNANSWERED = "unanswered"
    FALLBACK = "fallback"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RequestTime:
    """`stages` in seconds, adding up to `total_s`. `overlaps`: they were told to take longer than the whole, as stages
    side by side do, and stand here in proportion."""

    caller: CallerFact
    device: DeviceFact | None
    total_s: float
    stages: Mapping[Stage, float]
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """Requests in the order of their answers. `without_caller`: attempts that only the engine told of."""

    requests: tuple[RequestTime, ...]
    without_caller: int


def join(facts: Iterable[Fact]) -> Joined:
    """Both sides of each attempt; of an attempt's several facts the latest counts. Shadows are left out: nobody waits
    for them."""
    callers, devices = dict[str, CallerFact](), dict[str, DeviceFact]()
    for fact in facts:
        match fact:
            case CallerFact():
                callers[fact.attempt_id] = fact
            case DeviceFact():
                known = devices.get(fact.attempt_id)
                if known is None or known.finished_at <= fact.finished_at:
                    devices[fact.attempt_id] = fact
    answered = sorted(callers.values(), key=lambda fact: fact.answered_at)
    requests = tuple(
        request_time(caller, devices.get(caller.attempt_id)) for caller in answered if caller.path is not Path.SHADOW
    )
    return Joined(requests, len(devices.keys() - callers.keys()))


def request_time(caller: CallerFact, device: DeviceFact | None) -> RequestTime:
    """The time of one attempt. Durations are of monotonic clocks where the fact has them, else of the wall's."""
    told = caller.stages
    wall_s = max(0.0, (caller.answered_at - caller.arrived_at).total_seconds())
    total_s = told.total_ms / 1e3 if told is not None else wall_s
    stages = _of_engine(device) if told is None else _of_door(told, caller.rung, device)
    if not stages:
        return RequestTime(caller, device, total_s, {Stage.UNKNOWN: total_s})
    told_s = sum(stages.values())
    if told_s > total_s:
        return RequestTime(caller, device, total_s, {s: v * total_s / told_s for s, v in stages.items()}, overlaps=True)
    return RequestTime(caller, device, total_s, stages | {Stage.FRONT_END: total_s - told_s})


def _of_door(told: StageTimes, rung: Rung, device: DeviceFact | None) -> dict[Stage, float]:
    stages = {Stage.FEATURES: told.features_ms, Stage.QUEUE: told.queue_ms, Stage.FALLBACK: told.fallback_ms}
    stages[_model_stage(rung, device)] = told.model_ms
    return {stage: ms / 1e3 for stage, ms in stages.items()}


def _model_stage(rung: Rung, device: DeviceFact | None) -> Stage:
    if rung is not Rung.MODEL:
        return Stage.UNANSWERED
    if device is None:
        return Stage.UNKNOWN
    return Stage.PREFILL if device.prompt_tokens else Stage.SCORER


def _of_engine(device: DeviceFact | None) -> dict[Stage, float]:
    if device is None or device.queue_s is None or device.prefill_s is None or device.decode_s is None:
        return {}
    return {Stage.QUEUE: device.queue_s, Stage.PREFILL: device.prefill_s, Stage.DECODE: device.decode_s}

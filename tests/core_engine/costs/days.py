"""Random days of one replica: loads, steps, aborts, kills and restarts, in times that add up exactly.

Every time is a multiple of 1/64 s, which a float and a datetime both hold exactly: so the identity must hold to the
last digit, and whatever a test takes away from a day must be missing to the last digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from core_engine.contracts import Path, Pool, ReadCost, Rung
from core_engine.costs.facts import RUNNING, CallerFact, DeviceFact, Fact, ReplicaFact
from tests.core_engine.costs.ledger import at, caller, device, interval

TICK_S = 1 / 64
BLOCKS = 64


@dataclass
class Day:
    """`told` is what reached the spool, in its order; `untold` what a kill took with it."""

    told: list[Fact] = field(default_factory=list)
    untold: list[Fact] = field(default_factory=list)
    end_s: float = 0.0

    @property
    def devices(self) -> list[DeviceFact]:
        return [fact for fact in self.told if isinstance(fact, DeviceFact)]

    @property
    def intervals(self) -> list[ReplicaFact]:
        return [fact for fact in self.told if isinstance(fact, ReplicaFact)]


def cost(fact: DeviceFact) -> float:
    """What a charge costs at the round prices, exactly."""
    return 0.75 * fact.interval_device_s + 0.25 * fact.interval_kv_block_s / BLOCKS


@st.composite
def days(draw: st.DrawFn, *, kills: bool = True) -> Day:
    """One to three incarnations, each stopped or killed."""
    day = Day()
    for number in range(draw(st.integers(1, 3))):
        if number:
            day.end_s += draw(st.sampled_from([0, 1, 64, 640, 64 * 61, 64 * 600])) * TICK_S  # paid are 60 s
        _live(draw, day, f"life-{number}", is_killed=kills and draw(st.booleans()))
    return day


def _live(draw: st.DrawFn, day: Day, incarnation: str, *, is_killed: bool) -> None:
    ticks = st.integers(0, 40)
    loading_s = (draw(ticks) + 1) * TICK_S
    _interval(day, incarnation, 0, loading_s=loading_s)
    num_intervals = draw(st.integers(1, 4))
    running: dict[str, tuple[float, float]] = {}
    for number in range(1, num_intervals + 1):
        is_last = number == num_intervals
        kept = len(day.told)
        busy_s, held_block_s = _work(draw, day, incarnation, number, running, ends=is_last and not is_killed)
        spent = {"overhead_s": draw(ticks) * TICK_S, "idle_s": (draw(ticks) + 1) * TICK_S}
        free_block_s = BLOCKS * busy_s - held_block_s
        _interval(day, incarnation, number, busy_s=busy_s, free_block_s=free_block_s, is_last=is_last, **spent)
    if is_killed:
        _forget(draw, day, kept)


def _interval(day: Day, incarnation: str, number: int, **spent: Any) -> None:
    begin_s = day.end_s
    day.end_s += sum(value for name, value in spent.items() if name.endswith("_s") and name != "free_block_s")
    told = {"incarnation": incarnation, "total_blocks": BLOCKS, "idle_s": 0.0, "free_block_s": 0.0} | spent
    day.told.append(interval(number, begin_s, day.end_s, **told))


def _work(
    draw: st.DrawFn, day: Day, incarnation: str, number: int, running: dict[str, tuple[float, float]], *, ends: bool
) -> tuple[float, float]:
    """Charges of one interval, of those who run on and of new ones; busy seconds and block-seconds."""
    new = [f"{incarnation}-{number}-{n}" for n in range(draw(st.integers(0, 2)))]
    charges = {attempt: (draw(st.integers(0, 30)) * TICK_S, draw(st.integers(0, 8))) for attempt in [*running, *new]}
    busy_s = sum(device_s for device_s, _ in charges.values())
    for attempt, (device_s, blocks) in charges.items():
        earlier_s, earlier_block_s = running.pop(attempt, (0.0, 0.0))
        total = (earlier_s + device_s, earlier_block_s + blocks * busy_s)
        outcome = draw(st.sampled_from([RUNNING, "stop", "abort", "error"])) if not ends else "abort"
        if outcome == RUNNING:
            running[attempt] = total
        day.told.append(
            device(
                attempt,
                total[0],
                day.end_s,
                kv_block_s=total[1],
                incarnation=incarnation,
                interval=number,
                interval_device_s=device_s,
                interval_kv_block_s=blocks * busy_s,
                outcome=outcome,
                path=draw(st.sampled_from(list(Path))),
                predictor=draw(st.sampled_from(["delay", "route", ""])),
                pool=draw(st.sampled_from(list(Pool))),
            )
        )
        if draw(st.booleans()):
            day.told.append(_answer(draw, attempt, day.end_s))
    return busy_s, sum(blocks for _, blocks in charges.values()) * busy_s


def _answer(draw: st.DrawFn, attempt: str, second: float) -> CallerFact:
    return caller(
        attempt,
        second,
        delivery_key=draw(st.sampled_from([None, None, "order-7"])),
        rung=draw(st.sampled_from(list(Rung))),
        feature=ReadCost(draw(st.integers(0, 9)), 0, 0, 0),
        caller_cpu_s=draw(st.integers(0, 9)) * TICK_S,
        arrived_at=at(second - TICK_S),
    )


def _forget(draw: st.DrawFn, day: Day, kept: int) -> None:
    """A kill: the last interval's fact is not written, and any number of the attempts' that would have come before."""
    day.untold.append(day.told.pop())
    for index in reversed(range(kept, len(day.told))):
        if isinstance(day.told[index], DeviceFact) and draw(st.booleans()):
            day.untold.append(day.told.pop(index))

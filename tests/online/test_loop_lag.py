from __future__ import annotations

import asyncio

import pytest

from online.loop_lag import LoopLag


@pytest.mark.parametrize(("late_s", "is_near"), [(0.0, False), (0.004, False), (0.006, True)])
def test_a_loop_that_is_late_by_a_tenth_of_a_budget_is_near_its_limit(late_s: float, is_near: bool) -> None:
    lag = LoopLag()
    lag.late_s = late_s
    assert lag.is_near_limit is is_near


async def test_the_last_wake_up_is_what_counts() -> None:
    now_s, sleeps, seen = 0.0, iter((0.05, 0.0625, 0.05)), list[float]()

    async def sleep(_: float) -> None:
        nonlocal now_s
        seen.append(round(lag.late_s, 6))
        slept_s = next(sleeps, None)
        if slept_s is None:
            raise asyncio.CancelledError
        now_s += slept_s

    lag = LoopLag(clock=lambda: now_s, sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await lag.measure()
    assert seen == [0.0, 0.0, 0.0125, 0.0]

"""A paced run never gets ahead of its rate, and waits for nothing else."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from featurestore.lifecycle.pace import UNBOUNDED, TokenBucket, pace


class Time:
    """A clock that only sleeping and `pass_` move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds


@given(
    per_second=st.floats(0.1, 1e5),
    burst=st.integers(0, 50),
    parts=st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), min_size=1, max_size=30),
)
async def test_no_stretch_of_time_holds_more_than_rate_burst_and_one_part(
    per_second: float, burst: int, parts: list[tuple[int, float]]
) -> None:
    time = Time()
    bucket = TokenBucket(per_second, burst, time.clock, time.sleep)
    taken = []
    for amount, idle_s in parts:
        await bucket.take(amount)
        taken.append((time.now_s, amount))
        time.now_s += idle_s
    largest = max(amount for amount, _ in parts)
    for i, (begin_s, _) in enumerate(taken):
        for j in range(i, len(taken)):
            allowed = per_second * (taken[j][0] - begin_s) + burst + largest
            assert sum(amount for _, amount in taken[i : j + 1]) <= allowed * (1 + 1e-9) + 1e-6


@given(per_second=st.floats(1, 1e4), amounts=st.lists(st.integers(1, 50), min_size=2, max_size=20))
async def test_it_waits_no_longer_than_the_rate_asks_for(per_second: float, amounts: list[int]) -> None:
    time = Time()
    bucket = TokenBucket(per_second, 0, time.clock, time.sleep)
    for amount in amounts:
        await bucket.take(amount)
    assert time.now_s == pytest.approx(sum(amounts[:-1]) / per_second)
    assert len(time.sleeps) == len(amounts) - 1, "one timer per part, and none before the first"


async def test_tasks_that_come_together_share_one_rate() -> None:
    time = Time()
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    bucket = TokenBucket(10.0, 0, time.clock, note)
    await asyncio.gather(*(bucket.take(5) for _ in range(4)))
    assert waits == pytest.approx([0.5, 1.0, 1.5])


async def test_without_a_rate_nothing_waits_and_a_rate_of_zero_is_refused() -> None:
    assert pace(None, 1) is UNBOUNDED
    await UNBOUNDED.take(10**9)
    with pytest.raises(ConfigurationError, match="positive, got 0 a second"):
        pace(0, 1)

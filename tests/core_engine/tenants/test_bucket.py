"""The bucket against a model that refills, and what it says about waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.tenants.bucket import ROUNDING_S, Bucket, Rate

RATES = st.builds(Rate, st.floats(0.01, 1e5), st.floats(1, 1e6))
STEPS = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 1000)), max_size=50)  # (seconds later, amount)


@given(RATES, STEPS)
def test_it_lets_through_what_a_refilled_bucket_does(rate: Rate, steps: list[tuple[float, float]]) -> None:
    bucket, now_s, level = Bucket(), 1000.0, rate.burst
    for later_s, amount in steps:
        now_s += later_s
        level = min(rate.burst, level + later_s * rate.per_s)
        short = min(amount, rate.burst) - level
        wait_s = bucket.wait_s(amount, rate, now_s)
        assert wait_s == pytest.approx(max(short, 0.0) / rate.per_s, rel=1e-6, abs=1e-5)
        if not wait_s:
            bucket.take(amount, rate, now_s)
            level -= amount


@given(RATES, STEPS, st.floats(0.1, 1e7))
def test_after_the_wait_it_told_there_is_room_and_shortly_before_there_is_none(
    rate: Rate, steps: list[tuple[float, float]], amount: float
) -> None:
    bucket, now_s = Bucket(), 1000.0
    for _, before in steps:
        bucket.take(before, rate, now_s)
    wait_s = bucket.wait_s(amount, rate, now_s)
    assert bucket.wait_s(amount, rate, now_s + wait_s * (1 + 1e-9)) == 0.0
    if wait_s > 1.0:
        assert bucket.wait_s(amount, rate, now_s + wait_s * 0.99) > 0.0


@given(RATES, st.lists(st.floats(0.1, 1e7), min_size=1, max_size=50))
def test_in_the_long_run_no_more_than_the_rate_goes_through(rate: Rate, amounts: list[float]) -> None:
    """Whatever is asked, and as soon as it may be: at most the rate, and once the burst or the last amount."""
    bucket, now_s, taken = Bucket(), 0.0, 0.0
    for amount in amounts:
        now_s += bucket.wait_s(amount, rate, now_s)
        bucket.take(amount, rate, now_s)
        taken += amount
    most = now_s * rate.per_s + max(rate.burst, max(amounts))
    assert taken <= most * (1 + 1e-6) + 1e-3 + ROUNDING_S * rate.per_s * len(amounts)


def test_what_is_given_back_can_be_taken_at_once() -> None:
    bucket, rate = Bucket(), Rate(1.0, 60.0)
    bucket.take(60, rate, 0.0)
    assert bucket.wait_s(10, rate, 0.0) == 10.0
    bucket.give_back(45, rate)
    assert bucket.wait_s(10, rate, 0.0) == 0.0
    assert bucket.wait_s(46, rate, 0.0) == 1.0


def test_giving_back_never_fills_it_over_its_brim() -> None:
    bucket, rate = Bucket(), Rate(1.0, 60.0)
    bucket.take(30, rate, 0.0)
    bucket.give_back(30, rate)
    bucket.give_back(1e9, rate)
    bucket.take(60, rate, 100.0)
    assert bucket.wait_s(1, rate, 100.0) == 1.0


def test_more_than_it_holds_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    bucket, rate = Bucket(), Rate(1.0, 60.0)
    bucket.take(1, rate, 0.0)
    assert bucket.wait_s(600, rate, 0.0) == 1.0
    bucket.take(600, rate, 1.0)
    assert bucket.wait_s(1, rate, 1.0) == 541.0


def test_a_rate_may_change_while_it_is_used() -> None:
    bucket = Bucket()
    bucket.take(10, Rate(1.0, 10.0), 0.0)
    assert bucket.wait_s(1, Rate(1.0, 10.0), 0.0) == 1.0
    assert bucket.wait_s(1, Rate(100.0, 1000.0), 0.5) < 1.0

"""Deadlines and entity keys."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Deadline, entity_key

seconds = st.floats(0, 1e5)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@given(start=seconds, budget=seconds, passed=seconds)
def test_remaining_falls_with_the_clock_and_never_below_zero(start: float, budget: float, passed: float) -> None:
    clock = Clock(start)
    deadline = Deadline.after(budget, clock)
    clock.now += passed
    assert deadline.remaining() >= 0
    assert deadline.expired == (clock.now >= deadline.at_s)
    assert deadline.expired == (deadline.remaining() == 0)


@given(start=seconds, budget=seconds, cap=seconds, reserve=seconds)
def test_a_child_never_outlives_its_parent_less_the_reserve(
    start: float, budget: float, cap: float, reserve: float
) -> None:
    clock = Clock(start)
    parent = Deadline.after(budget, clock)
    child = parent.child(cap, reserve)
    assert child.at_s <= parent.at_s - reserve
    assert child.at_s <= start + cap


@given(start=seconds, budget=seconds, transit=st.floats(0, 10))
def test_the_receiver_subtracts_the_transit(start: float, budget: float, transit: float) -> None:
    sender = Clock(start)
    deadline = Deadline.after(budget, sender)
    received = Deadline.from_wire(deadline.to_wire(), Clock(start + transit))
    assert abs(received.at_s - deadline.at_s) < 1e-5


def test_no_deadline_stays_none_on_the_wire_and_for_asyncio() -> None:
    never = Deadline.never()
    assert never.to_wire().remaining_ns is None
    assert not Deadline.from_wire(never.to_wire()).is_finite
    assert never.timeout() is None
    assert never.child(1.0).is_finite
    assert never.remaining() == math.inf


@given(st.lists(st.text(max_size=8) | st.integers(), min_size=1, max_size=4), st.data())
def test_entity_keys_are_unambiguous(parts: list[str | int], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.text(max_size=8) | st.integers(), min_size=1, max_size=4))
    same = [str(p) for p in parts] == [str(p) for p in other]
    assert (entity_key(*parts) == entity_key(*other)) == same


def test_an_entity_key_reads_as_people_write_it() -> None:
    assert entity_key("JFK", "LAX") == "JFK-LAX"
    assert entity_key("a-b", "5%") == "a%2Db-5%25"

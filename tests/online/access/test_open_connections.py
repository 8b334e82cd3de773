"""Who has a place, who goes for whom, and who waits without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online.access.open_connections import Ended, Going, OpenConnections
from tests.online.access.conftest import Clock

MOST, EXTRA = 3, 2


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def full(clock: Clock) -> OpenConnections[str]:
    """Every place is taken by a connection with a request under way."""
    connections: OpenConnections[str] = OpenConnections(MOST, extra=EXTRA, idle_s=1.0, clock=clock)
    for name in ("a", "b", "c"):
        assert connections.enter(name) is None
        assert connections.begin(name)
    return connections


def test_the_one_that_has_asked_for_nothing_the_longest_makes_room(full: OpenConnections[str], clock: Clock) -> None:
    for name in ("b", "a"):
        clock.now_s += 1.0
        full.end(name)
    clock.now_s += 1.0
    assert full.enter("d") == Ended("b", Going.IDLE)
    assert full.enter("e") == Ended("a", Going.IDLE)
    assert full.begin("d")


def test_one_that_has_just_come_or_was_just_answered_is_not_idle(full: OpenConnections[str], clock: Clock) -> None:
    full.end("a")
    clock.now_s += 0.9
    assert full.enter("d") is None
    assert not full.begin("d")
    assert full.begin("a"), "who has a place keeps it"


def test_a_place_that_has_become_free_is_given_to_who_waits_and_asks(full: OpenConnections[str]) -> None:
    full.enter("d")
    full.leave("b")
    assert full.begin("d")
    full.enter("e")
    assert not full.begin("e")


def test_of_too_many_without_a_place_the_oldest_that_has_not_asked_is_ended(full: OpenConnections[str]) -> None:
    assert [full.enter(name) for name in ("d", "e")] == [None, None]
    assert not full.begin("d")  # its answer is on the way
    assert full.enter("f") is None
    assert full.enter("g") == Ended("e", Going.CROWDED)


def test_who_holds_on_to_connections_without_asking_keeps_nobody_out(clock: Clock) -> None:
    connections: OpenConnections[int] = OpenConnections(MOST, extra=EXTRA, idle_s=1.0, clock=clock)
    for number in range(100):
        connections.enter(number)
    clock.now_s += 1.0
    assert connections.enter(1000) == Ended(0, Going.IDLE)
    assert connections.begin(1000)


EVENTS = st.lists(st.tuples(st.sampled_from(["enter", "begin", "end", "leave"]), st.integers(0, 11), st.floats(0, 2)))


@given(EVENTS)
def test_no_more_than_the_bound_have_a_place_or_wait_whatever_they_do(events: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    connections: OpenConnections[int] = OpenConnections(MOST, extra=EXTRA, idle_s=1.0, clock=clock)
    waiting: set[int] = set()  # for their first request to be answered, with or without a place
    asked: dict[int, bool] = {}  # a request is under way: whether the connection has a place
    for event, number, later_s in events:
        clock.now_s += later_s
        if event == "enter" and number not in waiting | asked.keys():
            ended = connections.enter(number)
            waiting.add(number)
            if ended is not None:
                assert ended.connection in waiting, "a request under way is never cut off"
                waiting.discard(ended.connection)
        elif event == "begin" and number in waiting:
            waiting.discard(number)
            asked[number] = connections.begin(number)
        elif event == "end" and number in asked:
            connections.end(number)
            if asked.pop(number):
                waiting.add(number)
            else:
                connections.leave(number)  # it is told to close
        elif event == "leave":
            connections.leave(number)
            waiting.discard(number)
            asked.pop(number, None)
        assert len(waiting) + sum(asked.values()) <= MOST + EXTRA
        assert sum(asked.values()) <= MOST

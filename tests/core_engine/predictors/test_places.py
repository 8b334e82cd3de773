"""Places are given out first come first served, never more than the limit, and all come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Deadline
from core_engine.gradient_limit import GradientLimit
from core_engine.predictors.places import TURN_HOLD_S, TURNS, Places

NEVER = Deadline.never()
LONG_S = 3600.0  # no test waits for this


def places(limit: int, *, max_waiting: int = 2, max_wait_s: float = LONG_S) -> Places:
    return Places(
        GradientLimit(initial=limit, smallest=limit, largest=limit), max_waiting=max_waiting, max_wait_s=max_wait_s
    )


@asynccontextmanager
async def taken(at: Places, predictor: str, deadline: Deadline) -> AsyncIterator[bool]:
    has_place = await at.take(predictor, deadline)
    try:
        yield has_place
    finally:
        if has_place:
            at.leave(predictor)


async def hold(at: Places, release: asyncio.Event, told: list[bool], deadline: Deadline = NEVER) -> None:
    async with taken(at, "delay", deadline) as has_place:
        told.append(has_place)
        await release.wait()


async def test_who_waits_gets_the_place_that_is_left() -> None:
    at, first, second, told = places(1), asyncio.Event(), asyncio.Event(), list[bool]()
    one, two = asyncio.create_task(hold(at, first, told)), asyncio.create_task(hold(at, second, told))
    await asyncio.sleep(0)
    assert (told, at.in_flight, at.num_waiting) == ([True], 1, 1)
    first.set()
    await one
    await asyncio.sleep(0)
    assert (told, at.in_flight, at.num_waiting) == ([True, True], 1, 0)
    second.set()
    await two
    assert at.in_flight == 0


async def test_a_full_queue_refuses_at_once() -> None:
    at, release, told = places(1, max_waiting=2), asyncio.Event(), list[bool]()
    tasks = [asyncio.create_task(hold(at, release, told)) for _ in range(5)]
    await asyncio.sleep(0)
    assert sorted(told) == [False, False, True]
    release.set()
    await asyncio.gather(*tasks)
    assert sorted(told) == [False, False, True, True, True]


@pytest.mark.parametrize(("max_wait_s", "deadline"), [(0.0, NEVER), (LONG_S, Deadline(0.0))])
async def test_nobody_waits_longer_than_the_queue_holds_or_the_deadline_allows(
    max_wait_s: float, deadline: Deadline
) -> None:
    at, release, told = places(1, max_wait_s=max_wait_s), asyncio.Event(), list[bool]()
    release.set()
    async with taken(at, "delay", NEVER) as has_place:
        await hold(at, release, told, deadline)
        assert (has_place, told, at.in_flight, at.num_waiting) == (True, [False], 1, 0)


async def test_a_request_that_goes_away_leaves_the_queue_and_its_place() -> None:
    at, release, told = places(1), asyncio.Event(), list[bool]()
    holding, waiting = (asyncio.create_task(hold(at, release, told)) for _ in range(2))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert at.num_waiting == 0
    late = asyncio.create_task(hold(at, release, told))
    await asyncio.sleep(0)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    late.cancel()  # it was given the place, and has not run since
    await asyncio.gather(late, return_exceptions=True)
    assert (at.in_flight, at.num_waiting) == (0, 0)


async def test_a_predictor_that_holds_all_its_places_takes_none_from_another() -> None:
    at, release, told = places(1, max_waiting=0), asyncio.Event(), list[bool]()
    holding = asyncio.create_task(hold(at, release, told))
    await asyncio.sleep(0)
    async with taken(at, "delay", NEVER) as second, taken(at, "route", NEVER) as other:
        assert (second, other, at.in_flight) == (False, True, 2)
    release.set()
    await holding


async def test_each_request_measures_a_turn_of_the_loop() -> None:
    now, limit = [0.0], GradientLimit(initial=8, window=1)
    at = Places(limit, clock=lambda: now[0])
    async with AsyncExitStack() as held:
        for _ in range(8):
            await held.enter_async_context(taken(at, "delay", NEVER))
        await asyncio.sleep(0)
        before = limit.value
        async with taken(at, "delay", Deadline(0.0)):
            now[0] = 1.0  # the loop is held up before its next turn
            await asyncio.sleep(0)
        assert limit.value < before


async def test_the_longest_turn_of_late_is_told_and_forgotten() -> None:
    now = [0.0]
    at = Places(GradientLimit(initial=8), clock=lambda: now[0])
    assert at.turn_s == 0
    for turn_s, told_s in ((0.25, 0.25), (0.01, 0.25), (0.5, 0.5)):
        async with taken(at, "delay", NEVER):
            now[0] += turn_s  # the loop is held up before its next turn
            await asyncio.sleep(0)
        now[0] -= turn_s  # all of it within an instant
        assert at.turn_s == told_s
    now[0] += 0.5 + TURN_HOLD_S / 2
    assert at.turn_s == 0.5
    now[0] += TURN_HOLD_S
    assert at.turn_s == 0


async def held_up(at: Places, now: list[float], turn_s: float) -> None:
    """The loop's turn has just taken `turn_s`."""
    async with taken(at, "other", NEVER):
        now[0] += turn_s
        await asyncio.sleep(0)


@pytest.mark.parametrize(("budget_s", "has_place"), [(TURNS * 1000.0 - 1, False), (TURNS * 1000.0 + 60, True)])
async def test_a_request_that_the_loop_s_own_turns_would_make_late_has_no_place(
    budget_s: float, has_place: bool
) -> None:
    now = [0.0]
    at = Places(GradientLimit(initial=8), clock=lambda: now[0])
    await held_up(at, now, 1000.0)
    async with taken(at, "delay", Deadline.after(budget_s)) as told:
        assert told is has_place


@pytest.mark.parametrize("turn_s", [0.0, 1.0])
async def test_nobody_waits_for_a_place_while_a_turn_takes_longer_than_the_wait_may(turn_s: float) -> None:
    now, release, told = [0.0], asyncio.Event(), list[bool]()
    limit = GradientLimit(initial=1, smallest=1, largest=1)
    at = Places(limit, max_wait_s=turn_s / 2 or LONG_S, clock=lambda: now[0])
    async with taken(at, "delay", NEVER):
        await held_up(at, now, turn_s)
        waiting = asyncio.create_task(hold(at, release, told))
        await asyncio.sleep(0)
        assert (told, at.num_waiting) == (([False], 0) if turn_s else ([], 1))
    release.set()
    await waiting


@given(
    limit=st.integers(1, 4),
    moves=st.lists(st.tuples(st.sampled_from(["come", "go", "cancel"]), st.integers(0, 9)), max_size=60),
)
async def test_never_more_than_the_limit_and_none_is_lost(limit: int, moves: list[tuple[str, int]]) -> None:
    at = places(limit, max_waiting=3)
    tasks: list[tuple[asyncio.Task[None], asyncio.Event, list[bool]]] = []
    for move, which in moves:
        if move == "come":
            release, told = asyncio.Event(), list[bool]()
            tasks.append((asyncio.create_task(hold(at, release, told)), release, told))
        elif tasks:
            task, release, _ = tasks[which % len(tasks)]
            task.cancel() if move == "cancel" else release.set()
        if which % 2:
            await asyncio.sleep(0)
        held = sum(told == [True] and not task.done() for task, _, told in tasks)
        assert held <= at.in_flight <= limit
    for _, release, _ in tasks:
        release.set()
    await asyncio.gather(*(task for task, _, _ in tasks), return_exceptions=True)
    assert (at.in_flight, at.num_waiting) == (0, 0)

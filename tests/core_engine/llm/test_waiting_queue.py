"""Who is next: the tenant that has been served least, within it the most urgent, and nobody is owed for idling."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.sequence import Sequence
from core_engine.llm.waiting_queue import WaitingQueue
from tests.core_engine.llm.tiny import request


def sequence(tenant: str, urgent_s: float, num_tokens: int = 3) -> Sequence:
    made = Sequence(replace(request(range(num_tokens)), tenant=tenant), 0.0)
    made.urgent_s = urgent_s
    return made


def filled(*sequences: Sequence, weights: dict[str, float] | None = None) -> WaitingQueue:
    queue = WaitingQueue(weights)
    for each in sequences:
        queue.arrived(each.tenant)
        queue.push(each)
    return queue


def serve(queue: WaitingQueue, count: int, cost: float = 1.0) -> list[Sequence]:
    """Take the first candidate `count` times; each costs its tenant the same."""
    served = []
    for _ in range(count):
        each = next(queue.candidates())
        queue.remove(each)
        queue.charge(each.tenant, cost)
        served.append(each)
    return served


def test_within_a_tenant_the_most_urgent_is_next_whatever_the_order_of_arrival() -> None:
    late, soon, middle = sequence("a", 9.0), sequence("a", 1.0), sequence("a", 5.0)
    assert list(filled(late, soon, middle).candidates()) == [soon, middle, late]


def test_the_tenant_that_was_served_least_is_next() -> None:
    queue = filled(*(sequence("flood", n) for n in range(9)), *(sequence("small", 100 + n) for n in range(3)))
    assert [s.tenant for s in serve(queue, 6)].count("small") == 3


def test_a_tenant_of_weight_three_gets_three_times_as_much() -> None:
    queue = filled(
        *(sequence("big", n) for n in range(60)), *(sequence("one", n) for n in range(60)), weights={"big": 3.0}
    )
    assert 29 <= [s.tenant for s in serve(queue, 40)].count("big") <= 31


def test_a_tenant_that_was_idle_begins_at_the_level_of_the_busy_ones() -> None:
    queue = filled(*(sequence("busy", n) for n in range(40)))
    serve(queue, 20)
    for n in range(20):
        back = sequence("idle", n)
        queue.arrived("idle")
        queue.push(back)
    assert [s.tenant for s in serve(queue, 10)].count("idle") <= 6


def test_looking_at_candidates_changes_nothing() -> None:
    queue = filled(*(sequence("ab"[n % 2], n) for n in range(10)))
    first = list(queue.candidates())
    for _, each in zip(range(3), queue.candidates(), strict=False):
        assert each in queue
    assert list(queue.candidates()) == first


def test_one_that_comes_back_while_candidates_are_looked_at_is_not_lost() -> None:
    queue = filled(*(sequence("a", n) for n in range(4)))
    for each in queue.candidates():
        queue.remove(each)
        queue.push(each)
        break
    assert len(list(queue.candidates())) == len(list(queue)) == len(queue) == 4


@given(seed=st.integers(0, 2**32))
def test_the_sums_are_those_of_what_waits(seed: int) -> None:
    rng, queue, here = random.Random(seed), WaitingQueue(), list[Sequence]()
    for _ in range(60):
        if rng.random() < 0.6:
            each = sequence(rng.choice("abc"), rng.random(), rng.randint(1, 20))
            each.num_computed_tokens = rng.randint(0, each.num_tokens - 1)
            queue.arrived(each.tenant)
            queue.push(each)
            here.append(each)
        elif here:
            gone = here.pop(rng.randrange(len(here)))
            queue.remove(gone)
            queue.left(gone.tenant)
            assert gone not in queue
        assert len(queue) == len(here)
        assert {id(s) for s in queue} == {id(s) for s in here} == {id(s) for s in queue.candidates()}
        assert queue.num_tokens == sum(s.num_uncomputed_tokens for s in here)
        pairs = (sum(range(s.num_computed_tokens + 1, s.num_tokens + 1)) for s in here)
        assert queue.num_pairs == sum(pairs)
        assert queue.max_completion_tokens == sum(s.max_completion_tokens for s in here)

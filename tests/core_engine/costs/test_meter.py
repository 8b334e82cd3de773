"""The step clock: a second goes to one thing, intervals join, and a running attempt is told of once in each."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Deadline, Pool, ScoreRequest, Usage
from core_engine.costs.facts import RUNNING, DeviceFact, Fact, ReplicaFact
from core_engine.costs.meter import Capacity, ReplicaMeter, Spent
from tests.core_engine.llm.tiny import request

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


class Metered:
    """A meter on a clock that is moved by hand, and what it wrote."""

    def __init__(self, *, age_s: float = 0.0, period_s: float = 1.0) -> None:
        self.clock, self.told = Clock(), list[Fact]()
        self.meter = ReplicaMeter(
            "engine-0",
            "local",
            self.told.append,
            age_s=age_s,
            period_s=period_s,
            clock=self.clock,
            now=lambda: NOW,
        )

    @property
    def intervals(self) -> list[ReplicaFact]:
        return [fact for fact in self.told if isinstance(fact, ReplicaFact)]

    @property
    def attempts(self) -> list[DeviceFact]:
        return [fact for fact in self.told if isinstance(fact, DeviceFact)]


def serving(**options: float) -> Metered:
    metered = Metered(**options)
    metered.meter.serves(Capacity(total_blocks=64, interactive_seats=4, bulk_seats=1))
    return metered


def test_loading_runs_from_the_start_of_the_process_until_it_serves() -> None:
    metered = Metered(age_s=2.5)
    metered.clock.passes(1.5)
    metered.meter.serves(Capacity(64, 4, 1))
    (loading,) = metered.intervals
    assert (loading.interval, loading.loading_s, loading.total_blocks) == (0, 4.0, 64)
    assert (loading.from_at, loading.to_at) == (NOW - timedelta(seconds=2.5), NOW + timedelta(seconds=1.5))


def test_a_span_inside_another_takes_its_time_from_it() -> None:
    metered = serving()
    clock, meter = metered.clock, metered.meter
    with meter.spend(Spent.OVERHEAD):
        clock.passes(1)
        with meter.spend(Spent.IDLE):
            clock.passes(10)
        clock.passes(2)
        with suppress(KeyError), meter.spend(Spent.LOADING):
            clock.passes(100)
            raise KeyError
        clock.passes(4)
        meter.ran(3.0, free_block_s=30.0)
    clock.passes(1000)  # in no span: nobody's
    meter.close_interval()
    told = metered.intervals[-1]
    assert (told.overhead_s, told.idle_s, told.loading_s, told.busy_s) == (4.0, 10.0, 100.0, 3.0)
    assert (told.free_block_s, (told.to_at - told.from_at).total_seconds()) == (30.0, 1117.0)


def test_closing_inside_a_span_cuts_it_at_that_instant() -> None:
    metered = serving()
    with metered.meter.spend(Spent.IDLE):
        metered.clock.passes(3)
        metered.meter.close_interval()
        metered.clock.passes(5)
    metered.meter.close_interval(is_last=True)
    first, second = metered.intervals[1:]
    assert (first.idle_s, second.idle_s) == (3.0, 5.0)
    assert first.to_at == second.from_at
    assert (first.is_last, second.is_last) == (False, True)


def test_it_is_due_after_its_period_and_not_before() -> None:
    metered = serving(period_s=2.0)
    dues = []
    for passes_s in (1.75, 0.25):
        metered.clock.passes(passes_s)
        dues.append(metered.meter.is_due)
    metered.meter.close_interval()
    assert [*dues, metered.meter.is_due] == [False, True, False]


def test_an_attempt_through_three_intervals_is_charged_in_each_for_its_part() -> None:
    metered, asked = serving(), request(attempt_id="long", pool=Pool.BULK)
    for device_s in (1.0, 3.0):
        metered.meter.attempt(asked, Usage(device_s=device_s, kv_block_s=10 * device_s), RUNNING)
        metered.meter.close_interval()
    metered.meter.attempt(asked, Usage(device_s=3.5, kv_block_s=36.0), "length")
    metered.meter.close_interval()
    assert [(f.interval, f.device_s, f.interval_device_s, f.interval_kv_block_s) for f in metered.attempts] == [
        (1, 1.0, 1.0, 10.0),
        (2, 3.0, 2.0, 20.0),
        (3, 3.5, 0.5, 6.0),
    ]
    assert [f.outcome for f in metered.attempts] == [RUNNING, RUNNING, "length"]
    assert [told.charged_s for told in metered.intervals[1:]] == [1.0, 2.0, 0.5]
    assert not metered.meter._told


def test_a_running_attempt_that_used_nothing_since_is_not_told_of_again() -> None:
    metered, asked = serving(), request()
    for _ in range(3):
        metered.meter.attempt(asked, Usage(device_s=1.0), RUNNING)
        metered.meter.close_interval()
    assert len(metered.attempts) == 1
    metered.meter.attempt(asked, Usage(device_s=1.0), "abort")
    assert [f.interval_device_s for f in metered.attempts] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("scorer", "served"), [("delay:3", ("delay", 3)), ("odd", ("odd", 0)), ("a:b", ("a:b", 0)), (":1", (":1", 0))]
)
def test_a_scorer_s_name_is_its_predictor_and_version_where_it_is_one(scorer: str, served: tuple[str, int]) -> None:
    metered = serving()
    metered.meter.attempt(ScoreRequest("s", scorer, b"", 1, Deadline.never()), Usage(), "scored")
    (fact,) = metered.attempts
    assert (fact.predictor, fact.version) == served
    assert (fact.incarnation, fact.replica) == (metered.meter.incarnation, "engine-0")


@given(
    st.lists(st.tuples(st.sampled_from([*Spent, None]), st.integers(0, 50), st.booleans(), st.booleans()), max_size=30)
)
def test_every_second_goes_to_one_thing_whatever_the_order(script: list[tuple[Spent | None, int, bool, bool]]) -> None:
    """Spans in spans, pauses between them and intervals closed anywhere: all told seconds are the walls' but pauses."""
    metered = serving()
    paused = 0
    for kind, ticks, is_nested, closes in script:
        if kind is None:
            metered.clock.passes(ticks)
            paused += ticks
            continue
        with metered.meter.spend(kind):
            metered.clock.passes(ticks)
            if is_nested:
                with metered.meter.spend(Spent.IDLE):
                    metered.clock.passes(1)
            if closes:
                metered.meter.close_interval()
            metered.clock.passes(2)
    metered.meter.close_interval(is_last=True)
    told = metered.intervals
    spent = sum(f.loading_s + f.busy_s + f.overhead_s + f.idle_s for f in told)
    wall = sum((f.to_at - f.from_at).total_seconds() for f in told)
    assert spent == wall - paused
    assert [f.interval for f in told] == list(range(len(told)))
    assert all(later.from_at == earlier.to_at for earlier, later in pairwise(told))

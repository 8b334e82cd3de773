"""The breaker as a state machine on a clock that a test moves."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from core_engine.breaker import Breaker, BreakerState

MIN_FAILURES, SPAN_S, RETRY_S = 3, 0.25, 0.5  # binary fractions, so that sums of them are exact


class BreakerMachine(RuleBasedStateMachine):
    """Beside the breaker stands what was seen of it: failures since the last success, and when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.breaker = Breaker(min_failures=MIN_FAILURES, span_s=SPAN_S, retry_s=RETRY_S, clock=lambda: self.now_s)
        self.failed_at_s: list[float] = []  # since it was closed last
        self.refused_from_s: float | None = None  # when it opened, or let a probe through

    @rule(eighths=st.integers(1, 12))
    def time_passes(self, eighths: int) -> None:
        self.now_s += eighths / 8

    @rule()
    def fails(self) -> None:
        was = self.breaker.state
        self.failed_at_s.append(self.now_s)
        self.breaker.failed()
        is_run = len(self.failed_at_s) >= MIN_FAILURES and self.now_s - self.failed_at_s[0] >= SPAN_S
        if was is BreakerState.HALF_OPEN or (was is BreakerState.CLOSED and is_run):
            assert self.breaker.state is BreakerState.OPEN
            self.refused_from_s = self.now_s
        else:
            assert self.breaker.state is was

    @rule()
    def succeeds(self) -> None:
        was = self.breaker.state
        self.breaker.succeeded()
        if was is BreakerState.OPEN:
            assert self.breaker.state is BreakerState.OPEN
        else:
            assert self.breaker.state is BreakerState.CLOSED
            self.failed_at_s, self.refused_from_s = [], None

    @rule()
    def is_asked(self) -> None:
        was = self.breaker.state
        allowed = self.breaker.allow()
        if was is BreakerState.CLOSED:
            assert allowed
            return
        assert self.refused_from_s is not None
        assert allowed == (self.now_s - self.refused_from_s >= RETRY_S)  # so at most one probe per `retry_s`
        if allowed:
            assert self.breaker.state is BreakerState.HALF_OPEN
            self.refused_from_s = self.now_s

    @invariant()
    def it_is_closed_exactly_while_nobody_is_refused(self) -> None:
        assert (self.breaker.state is BreakerState.CLOSED) == (self.refused_from_s is None)


TestBreakerMachine = BreakerMachine.TestCase


@pytest.fixture
def opened() -> tuple[Breaker, list[float]]:
    now = [0.0]
    breaker = Breaker(min_failures=2, span_s=0.1, retry_s=0.5, clock=lambda: now[0])
    breaker.failed()
    now[0] = 0.2
    breaker.failed()
    return breaker, now


def test_failures_of_one_instant_do_not_open_it() -> None:
    breaker = Breaker(min_failures=2, span_s=0.1, clock=lambda: 7.0)
    for _ in range(100):
        breaker.failed()
    assert breaker.allow()


def test_a_probe_that_answers_closes_it_for_all(opened: tuple[Breaker, list[float]]) -> None:
    breaker, now = opened
    assert not breaker.allow()
    now[0] = 0.7
    assert [breaker.allow(), breaker.allow()] == [True, False]
    breaker.succeeded()
    assert [breaker.allow(), breaker.allow()] == [True, True]


def test_a_probe_that_never_ends_blocks_none_after_it(opened: tuple[Breaker, list[float]]) -> None:
    breaker, now = opened
    allowed = []
    for now[0] in (0.7, 0.9, 1.2, 1.3, 1.7):
        allowed.append(breaker.allow())
    assert allowed == [True, False, True, False, True]

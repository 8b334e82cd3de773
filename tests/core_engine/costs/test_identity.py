"""The identity on random days: it holds to the last digit, and what is taken away is missing to the last digit."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from core_engine.contracts import Path
from core_engine.costs.facts import RUNNING, CallerFact, DeviceFact
from core_engine.costs.quantities import DIMENSIONS, Window
from core_engine.costs.report import QUANTUM, CostReport, Source, Term, build, rounded
from tests.core_engine.costs.days import Day, cost, days
from tests.core_engine.costs.ledger import at, load, reported, round_prices


def adds_up(made: CostReport) -> bool:
    by_term = {term: sum((line.terms.get(term, Decimal(0)) for line in made.lines), Decimal(0)) for term in Term}
    return (
        made.left == made.right == sum((line.total for line in made.lines), Decimal(0))
        and by_term == dict(made.total.terms)
        and sum(made.sources.values(), Decimal(0)) == made.right
    )


@settings(max_examples=30, deadline=None)
@given(day=days(), by=st.lists(st.sampled_from(DIMENSIONS), min_size=1, unique=True))
def test_the_identity_holds_exactly_through_aborts_kills_and_restarts(
    database: Engine, day: Day, by: list[str]
) -> None:
    made = reported(database, day.told, by=by)
    assert adds_up(made)
    assert made.total.terms[Term.UNATTRIBUTED] == 0, made
    assert made.unattributed_share == 0
    assert made.closes
    assert min(made.total.terms.values()) >= 0


@settings(max_examples=25, deadline=None)
@given(day=days(kills=False), data=st.data())
def test_a_charge_that_is_lost_is_unattributed_to_the_last_digit(
    database: Engine, day: Day, data: st.DataObject
) -> None:
    assume(day.devices)
    lost = data.draw(st.sampled_from(day.devices))
    made = reported(database, [fact for fact in day.told if fact is not lost])
    assert adds_up(made)
    assert abs(made.total.terms[Term.UNATTRIBUTED] - Decimal(cost(lost))) < QUANTUM
    assert made.closes == (made.unattributed_share <= Decimal("0.005"))


@settings(max_examples=25, deadline=None)
@given(day=days(kills=False), data=st.data())
def test_an_interval_that_is_lost_within_a_life_leaves_its_time_unattributed(
    database: Engine, day: Day, data: st.DataObject
) -> None:
    """Its charges are known and stay; nobody knows what the rest of its time went to."""
    inner = [told for told in day.intervals if not told.is_last and told.interval > 0]
    assume(inner)
    lost = data.draw(st.sampled_from(inner))
    made = reported(database, [fact for fact in day.told if fact is not lost])
    charged = sum(cost(f) for f in day.devices if (f.incarnation, f.interval) == (lost.incarnation, lost.interval))
    wall_s = (lost.to_at - lost.from_at).total_seconds()
    assert adds_up(made)
    assert abs(made.total.terms[Term.UNATTRIBUTED] - Decimal(wall_s - charged)) < QUANTUM
    assert any("without facts, left unattributed" in note for note in made.notes)


@settings(max_examples=25, deadline=None)
@given(day=days(), cut=st.floats(0.01, 0.99))
def test_windows_side_by_side_add_up_to_the_whole(database: Engine, day: Day, cut: float) -> None:
    end_s = day.end_s + 1
    whole, first, second = Window(at(0), at(end_s)), Window(at(0), at(cut * end_s)), Window(at(cut * end_s), at(end_s))
    load(database, day.told)
    made = build(database, round_prices(), whole)
    parts = [build(database, round_prices(), part) for part in (first, second) if _knows(day, part)]
    for term in Term:
        summed = sum((part.total.terms[term] for part in parts), Decimal(0))
        assert summed == pytest.approx(made.total.terms[term], abs=100 * QUANTUM), term
    assert sum(part.total.count.attempts for part in parts) == made.total.count.attempts


def _knows(day: Day, window: Window) -> bool:
    return any(told.from_at < window.to_at and told.to_at > window.from_at for told in day.intervals)


@settings(max_examples=25, deadline=None)
@given(day=days())
def test_each_source_and_term_is_what_the_day_was_made_of(database: Engine, day: Day) -> None:
    """An oracle that reads the facts, not the ledger."""
    made = reported(database, day.told)
    reads = {f.attempt_id: f.feature.reads for f in day.told if isinstance(f, CallerFact)}
    assert made.sources.get(Source.READS, 0) == sum(reads.values())
    assert made.total.terms[Term.READS] == sum(reads.values())
    assert float(made.total.terms[Term.LOADING]) == sum(told.loading_s for told in day.intervals)
    in_intervals = {(told.incarnation, told.interval) for told in day.intervals}
    charged = [f for f in day.devices if (f.incarnation, f.interval) in in_intervals or _is_followed(day, f)]
    requests = made.total.terms[Term.DEVICE] + made.total.terms[Term.MEMORY]
    assert float(requests) == pytest.approx(sum(map(cost, charged)), abs=1e-7)


def _is_followed(day: Day, fact: DeviceFact) -> bool:
    """Whether another life came after this fact's, so that its lost interval's time is known to be over."""
    return fact.incarnation != day.intervals[-1].incarnation


@settings(max_examples=25, deadline=None)
@given(day=days())
def test_attempts_and_deliveries_are_counted_once(database: Engine, day: Day) -> None:
    made = reported(database, day.told)
    callers = {f.attempt_id: f for f in day.told if isinstance(f, CallerFact)}
    outcomes = {f.attempt_id: f.outcome for f in day.devices}
    ended = set(callers) | {attempt for attempt, outcome in outcomes.items() if outcome != RUNNING}
    assert made.total.count.attempts == len(ended)
    paths = {f.attempt_id: f.path for f in day.devices}
    paths |= {f.attempt_id: f.path for f in callers.values()}  # whose word wins
    delivering = [attempt for attempt in ended if paths[attempt] is not Path.SHADOW]
    keys = Counter(getattr(callers.get(attempt), "delivery_key", None) for attempt in delivering)
    assert made.total.count.deliveries == keys[None] + (1 if keys["order-7"] else 0)
    assert made.total.count.attempts == sum(line.count.attempts for line in made.lines)


@given(
    st.lists(st.fractions(min_value=-10, max_value=10), max_size=30),
    st.sampled_from([Decimal("1e-9"), Decimal("0.01"), Decimal("1")]),
)
def test_rounding_loses_no_cent_and_moves_nothing_by_a_whole_one(exact: list[Fraction], quantum: Decimal) -> None:
    money = rounded(exact, quantum)
    assert sum(money, Decimal(0)) == round(sum(exact, Fraction(0)) / Fraction(quantum)) * quantum
    for value, amount in zip(exact, money, strict=True):
        assert abs(Fraction(amount) - value) < Fraction(quantum)
        assert amount % quantum == 0
    assert all(amount == 0 for value, amount in zip(exact, money, strict=True) if value == 0)

"""What each second, read and month costs, and whose line it is on; by hand, at prices of 1."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from sqlalchemy import Engine

from core_engine.contracts import Path as DoorPath
from core_engine.contracts import Pool, ReadCost, Rung
from core_engine.costs.facts import RUNNING, Fact
from core_engine.costs.quantities import LedgerEmpty, Window
from core_engine.costs.report import CostReport, Line, Source, Term, build
from core_engine.errors import ConfigurationError, InvalidRequest
from tests.core_engine.costs.days import Day, days
from tests.core_engine.costs.ledger import (
    PRICES,
    at,
    caller,
    device,
    interval,
    load,
    price_book,
    reported,
    round_prices,
)


def line(made: CostReport, *key: str) -> Line:
    (found,) = (line for line in made.lines if line.key == key)
    return found


def terms(made: CostReport) -> dict[Term, float]:
    return {term: float(amount) for term, amount in made.total.terms.items() if amount}


def test_a_busy_second_is_split_by_the_memory_share_and_unheld_memory_is_idle(database: Engine) -> None:
    """1 s busy: 0.75 to who ran; of the 0.25 for memory, 40 of 100 blocks were held."""
    facts: list[Fact] = [device(device_s=1.0, kv_block_s=40.0), interval(busy_s=1.0, free_block_s=60.0)]
    made = reported(database, facts)
    assert terms(made) == {Term.DEVICE: 0.75, Term.MEMORY: 0.1, Term.IDLE: 0.15}
    assert made.left == made.right == 1
    assert made.closes


def test_time_that_is_not_busy_goes_whole_to_its_own_term(database: Engine) -> None:
    facts: list[Fact] = [interval(0, 0, 2, loading_s=2.0), interval(1, 2, 12, overhead_s=1.0)]
    made = reported(database, facts)
    assert terms(made) == {Term.LOADING: 2.0, Term.OVERHEAD: 1.0, Term.IDLE: 9.0}


def test_idle_is_split_by_the_pools_seat_floors(database: Engine) -> None:
    made = reported(database, [interval(end=8.0)])  # floors of 3 and 1
    assert line(made, "-", "(idle, interactive pool)").total == 6
    assert line(made, "-", "(idle, bulk pool)").total == 2
    halves = reported(database, [interval(end=8.0, interactive_seats=0, bulk_seats=0)])
    assert line(halves, "-", "(idle, bulk pool)").total == 4


def test_a_replica_without_blocks_has_no_memory_to_sell(database: Engine) -> None:
    facts: list[Fact] = [device(device_s=1.0), interval(busy_s=1.0, total_blocks=0, free_block_s=0.0)]
    assert terms(reported(database, facts)) == {Term.DEVICE: 0.75, Term.IDLE: 0.25}


def test_reads_and_caller_cpu_are_bought_by_the_piece(database: Engine) -> None:
    facts: list[Fact] = [caller("a", 1.0), caller("b", 2.0, predictor="route", feature=ReadCost(7, 0, 0, 0))]
    made = reported(database, facts)
    assert made.sources == {**made.sources, Source.READS: 9, Source.CALLER_CPU: Decimal("0.5")}
    assert dict(line(made, "online", "route").terms) == {Term.READS: 7, Term.CALLER_CPU: Decimal("0.25")}
    assert made.closes


def test_storage_and_fixed_costs_are_the_platform_s(database: Engine, tmp_path: Path) -> None:
    text = PRICES + "[periods.storage.redis]\ngb = 10\ngb_month = 0.31\n[periods.fixed]\nrent = 31\n"
    window = Window(at(0), at(0) + timedelta(days=1))
    made = reported(database, [interval()], book=price_book(tmp_path, text), window=window)
    assert dict(line(made, "-", "(platform)").terms) == {Term.STORAGE: Decimal("0.1"), Term.FIXED: 1}
    assert made.sources == {**made.sources, Source.STORAGE: Decimal("0.1"), Source.FIXED: 1}
    assert made.closes


def test_prices_that_change_within_the_window_hold_each_for_its_days(database: Engine, tmp_path: Path) -> None:
    midnight = datetime.fromisoformat("2026-03-02T00:00:00+00:00")
    free = PRICES.replace("valid_from = 2026-01-01", "valid_from = 2026-03-02")
    dear = PRICES.replace("valid_from = 2026-01-01", "valid_from = 2026-01-01\nvalid_to = 2026-03-02")
    free = free.partition("[[periods]]")[2].replace("hour = 3600\nm", "hour = 0\nm")
    book = price_book(tmp_path, dear + "[[periods]]" + free)
    spans = interval(from_at=midnight - timedelta(seconds=3), to_at=midnight + timedelta(seconds=1), end=4.0)
    made = reported(database, [spans], book=book)
    assert made.right == 3
    assert terms(made) == {Term.IDLE: 3.0}


# -- deaths, gaps, what has not come yet


def test_the_time_from_a_stop_to_the_next_start_is_overhead(database: Engine) -> None:
    facts: list[Fact] = [interval(end=1.0, is_last=True), interval(0, 6.0, 7.0, incarnation="second", loading_s=1.0)]
    made = reported(database, facts)
    assert terms(made) == {Term.IDLE: 1.0, Term.OVERHEAD: 5.0, Term.LOADING: 1.0}
    assert made.right == 7
    assert made.notes == ("5.000 s from a replica's stop to its next start, counted as overhead",)


def test_work_of_the_interval_that_a_kill_took_is_charged_and_the_rest_of_the_gap_is_overhead(
    database: Engine,
) -> None:
    ran = device(device_s=0.5, kv_block_s=20.0, interval=2, outcome="stop")
    facts: list[Fact] = [interval(1, 0, 1), ran, interval(0, 6.0, 7.0, incarnation="second", loading_s=1.0)]
    made = reported(database, facts)
    assert terms(made)[Term.DEVICE] == 0.375
    assert terms(made)[Term.MEMORY] == 0.05
    assert terms(made)[Term.OVERHEAD] == 5.0 - 0.375 - 0.05
    assert "4.500 s from the last word of a replica that died to its next start, counted as overhead" in made.notes
    assert made.total.terms[Term.UNATTRIBUTED] == 0


def test_a_replica_that_was_away_for_long_was_given_back(database: Engine) -> None:
    """The round price book pays 60 s; of a longer gap only what is known to have run."""
    ran = device(device_s=0.5, interval=2)
    facts: list[Fact] = [interval(1, 0, 1), ran, interval(0, 100.0, 101.0, incarnation="second", loading_s=1.0)]
    made = reported(database, facts)
    assert made.right == Decimal("2.5")
    assert made.total.terms[Term.UNATTRIBUTED] == 0
    assert any("98.500 s of replicas that were down for longer" in note for note in made.notes)


def test_what_runs_at_load_time_is_charged_up_to_its_last_interval_and_the_rest_later(database: Engine) -> None:
    first = device(device_s=0.25, outcome=RUNNING, interval=1)
    ended = device(device_s=1.0, interval_device_s=0.75, outcome="length", interval=2, second=1.5)
    facts: list[Fact] = [first, interval(1, 0, 1, busy_s=0.25)]
    early = reported(database, facts)
    assert (early.total.terms[Term.DEVICE], early.closes) == (Decimal("0.1875"), True)
    assert early.total.count.attempts == 0
    assert any("running when their replica last told of them" in note for note in early.notes)

    pending = reported(database, [*facts, ended])
    assert (pending.total.terms[Term.DEVICE], pending.closes) == (Decimal("0.1875"), True)
    assert "0.750 device seconds are not in yet: their interval has not been told" in pending.notes

    late = reported(database, [*facts, ended, interval(2, 1, 2, busy_s=0.75)])
    assert (late.total.terms[Term.DEVICE], late.total.count.attempts, late.notes[1:]) == (Decimal("0.75"), 1, ())


def test_replicas_side_by_side_have_gaps_of_their_own(database: Engine) -> None:
    facts: list[Fact] = [
        interval(1, 0, 1),
        interval(1, 0, 1, replica="engine-1", incarnation="other"),
        interval(2, 1, 2, replica="engine-1", incarnation="other"),
        interval(0, 3, 4, incarnation="second", loading_s=1.0),
    ]
    made = reported(database, facts)
    assert terms(made) == {Term.IDLE: 3.0, Term.OVERHEAD: 2.0, Term.LOADING: 1.0}


def test_a_term_that_is_left_out_is_seen(database: Engine) -> None:
    """An engine that forgot to tell of its overhead does not close."""
    made = reported(database, [interval(end=10.0, idle_s=9.0)])
    assert made.total.terms[Term.UNATTRIBUTED] == 1
    assert (made.unattributed_share, made.closes) == (Decimal("0.1"), False)
    within = reported(database, [interval(end=10.0, idle_s=9.95)])
    assert (within.unattributed_share, within.closes) == (Decimal("0.005"), True)
    twice = reported(database, [interval(end=10.0, idle_s=11.0)])
    assert twice.total.terms[Term.UNATTRIBUTED] == -1
    assert not twice.closes


# -- lines


def test_lines_are_by_the_dimensions_asked_for(database: Engine) -> None:
    facts: list[Fact] = [
        device("a", pool=Pool.BULK, path=DoorPath.BATCH),
        caller("a", path=DoorPath.BATCH, tenant="blue"),
        device("b"),
        interval(busy_s=1.0),
    ]
    load(database, facts)
    by_pool = build(database, round_prices(), by=("tenant", "pool", "rung", "version"))
    assert line(by_pool, "blue", "bulk", "model", "1").count.attempts == 1
    assert line(by_pool, "local", "interactive", "-", "1").count.attempts == 1
    by_path = build(database, round_prices(), by=("path",))
    assert [found.key[0] for found in by_path.lines][:2] == ["batch", "online"]
    assert by_path.left == by_pool.left


def test_an_attempt_without_a_predictor_has_a_line_too(database: Engine) -> None:
    made = reported(database, [device(predictor="", version=0, device_s=1.0), interval(busy_s=1.0)])
    assert line(made, "online", "unnamed").terms[Term.DEVICE] == Decimal("0.75")


def test_retries_of_one_delivery_are_one_delivery_of_its_tenant(database: Engine) -> None:
    facts: list[Fact] = [
        caller("a", delivery_key="order-7", rung=Rung.NONE, delivered_in_time=False),
        caller("b", delivery_key="order-7"),
        caller("c", delivery_key="order-7", tenant="other"),
        caller("d"),
        caller("e"),
    ]
    count = reported(database, facts).total.count
    assert (count.attempts, count.deliveries, count.in_time) == (5, 4, 4)


def test_a_shadow_costs_and_delivers_nothing(database: Engine) -> None:
    shadow: dict[str, Any] = {"path": DoorPath.SHADOW, "version": 2}
    facts: list[Fact] = [
        caller("live"),
        device("live", 1.0),
        caller("again", caller_cpu_s=0.5, delivered_in_time=False, **shadow),
        device("again", 2.0, **shadow),
        interval(end=4.0, busy_s=3.0),
    ]
    made = reported(database, facts)
    answered, shadowed = line(made, "online", "delay"), line(made, "shadow", "delay")
    assert (answered.count.attempts, answered.count.deliveries, answered.count.in_time) == (1, 1, 1)
    assert (shadowed.count.attempts, shadowed.count.deliveries, shadowed.count.in_time) == (1, 0, 0)
    assert shadowed.terms[Term.DEVICE] == 2 * answered.terms[Term.DEVICE]
    assert shadowed.terms[Term.CALLER_CPU] == Decimal("0.5")
    assert made.total.count.deliveries == 1


def test_a_missing_side_is_named(database: Engine) -> None:
    made = reported(database, [caller("asked"), caller("student", rung=Rung.STUDENT), device("ran"), interval()])
    assert "1 attempts answered by the model lack the engine's fact" in made.notes
    assert "1 attempts lack a caller's fact: their reads and caller CPU are not known" in made.notes


@settings(max_examples=15, deadline=None)
@given(day=days())
def test_lines_are_ordered_and_their_terms_are_all_there_is(database: Engine, day: Day) -> None:
    made = reported(database, day.told)
    named = [found for found in made.lines if not found.key[-1].startswith("(")]
    assert [found.total for found in named] == sorted((found.total for found in named), reverse=True)
    assert all(found.requests == found.total for found in named)
    assert len({found.key for found in made.lines}) == len(made.lines)
    assert set(made.total.terms) == set(Term)


# -- refusals


def test_an_empty_ledger_is_refused(database: Engine) -> None:
    with pytest.raises(LedgerEmpty, match="the ledger is empty; run something"):
        reported(database, [])


def test_a_window_of_which_nothing_is_known_is_refused_and_says_what_is(database: Engine) -> None:
    with pytest.raises(LedgerEmpty, match=r"knows nothing of 2026-03-01T13.*it knows 2026-03-01T12:00:00"):
        reported(database, [interval()], window=Window(at(3600), at(7200)))


@pytest.mark.parametrize("by", [(), ("colour",), ("path", "path")])
def test_unknown_dimensions_are_refused(database: Engine, by: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="expected some of path, predictor"):
        reported(database, [interval()], by=by)


def test_an_empty_or_naive_window_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the window is empty"):
        Window(at(1), at(1))
    with pytest.raises(InvalidRequest, match="offset from UTC"):
        Window(datetime(2026, 1, 1), at(1))


def test_a_kind_without_a_price_is_refused(database: Engine) -> None:
    with pytest.raises(ConfigurationError, match="no price for replicas of kind 'h200'"):
        reported(database, [interval(kind="h200")])

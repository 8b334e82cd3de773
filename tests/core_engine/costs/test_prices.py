"""A price book is dated, complete and exact, or it is refused with a sentence that says where."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.costs.prices import load_price_book, months_between, seconds
from core_engine.errors import ConfigurationError
from tests.core_engine.costs.ledger import price_book

HEAD = 'name = "ours"\ncurrency = "EUR"\n'


def period(begin: str, end: str | None = None, **prices: str) -> str:
    lines = [f"valid_from = {begin}", *([f"valid_to = {end}"] if end else [])]
    return "\n".join(["[[periods]]", *lines, *(f"{name} = {price}" for name, price in prices.items()), ""])


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_the_committed_book_says_that_it_is_an_example_and_prices_the_local_stack() -> None:
    book = load_price_book()
    assert book.is_example
    (span,) = book.spans(day("2026-01-01"), day("2026-02-01"))
    price = book.replica(span.prices, "local")
    assert 0 < price.memory_share < 1
    assert price.hour > 0
    assert span.months == 1


def test_prices_are_the_decimals_that_are_written(tmp_path: Path) -> None:
    text = HEAD + period("2026-01-01", reads_per_million="0.1", caller_cpu_hour='"0.30"')
    (prices,) = price_book(tmp_path, text).periods
    assert (prices.reads_per_million, prices.caller_cpu_hour) == (Decimal("0.1"), Decimal("0.30"))


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    replicas = {"h200": {"hour": "4.50", "memory_share": "0.4"}}
    first = {"valid_from": "2026-01-01", "reads_per_million": "0.1", "replicas": replicas, "fixed": {"rent": 5}}
    stored = price_book(tmp_path, json.dumps({"name": "ours", "currency": "EUR", "periods": [first]}), "prices.json")
    text = HEAD + period("2026-01-01", reads_per_million="0.1")
    text += "[periods.replicas.h200]\nhour = 4.50\nmemory_share = 0.4\n[periods.fixed]\nrent = 5\n"
    assert stored.periods == price_book(tmp_path, text).periods


def test_a_window_is_cut_where_prices_change(tmp_path: Path) -> None:
    text = HEAD + period("2026-02-01") + period("2026-01-01", "2026-02-01", reads_per_million="7")
    spans = list(price_book(tmp_path, text).spans(day("2026-01-30"), day("2026-02-03")))
    assert [(s.from_at.day, s.to_at.day, int(s.prices.reads_per_million)) for s in spans] == [(30, 1, 7), (1, 3, 0)]
    assert [s.months for s in spans] == [Fraction(2, 31), Fraction(2, 28)]


@pytest.mark.parametrize(
    ("begin", "end", "named"),
    [
        ("2025-12-31", "2026-01-02", "2025-12-31"),
        ("2026-01-09", "2026-01-12", "2026-01-10"),
        ("2026-01-10", "2026-01-11", "2026-01-10"),
        ("2026-03-30", "2026-04-02", "2026-04-01"),
    ],
    ids=["before the first", "into a hole", "in a hole", "after the last"],
)
def test_a_day_without_prices_is_named(tmp_path: Path, begin: str, end: str, named: str) -> None:
    text = HEAD + period("2026-01-01", "2026-01-10") + period("2026-01-20", "2026-04-01")
    with pytest.raises(ConfigurationError, match=f"has no prices for {named}; add a period"):
        list(price_book(tmp_path, text).spans(day(begin), day(end)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + period("2026-01-01", "2026-02-01") + period("2026-01-31"), "may not overlap"),
        (HEAD + period("2026-01-01") + period("2026-02-01"), "has no end, and the next begins on 2026-02-01"),
        (HEAD + period("2026-02-01", "2026-02-01"), "ends on 2026-02-01, before it begins"),
        (HEAD + period("2026-01-01", reads_per_million="-1"), "reads_per_million = .*greater than or equal to 0"),
        (HEAD + period("2026-01-01", reads_per_million="nan"), "finite"),
        (HEAD + period("2026-01-01", read_per_million="1"), "read_per_million = .*not permitted"),
        (HEAD + period("2026-01-01") + "[periods.replicas.a]\nhour = 1\nmemory_share = 1.5", "memory_share"),
        (HEAD + period("2026-01-01") + "[periods.replicas.a]\nmemory_share = 0.5", "replicas.a.hour"),
        (HEAD + "periods = []", "periods"),
        (HEAD + period("yesterday"), "cannot be read"),
        ("name = ", "cannot be read"),
    ],
)
def test_a_bad_book_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        price_book(tmp_path, text)
    assert "prices.toml" in str(refused.value)


def test_a_book_that_is_not_there_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist; see HEADRACE_COSTS__PRICE_BOOK"):
        load_price_book(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_price_book(tmp_path)


def test_a_kind_without_a_price_names_those_that_have_one() -> None:
    book = load_price_book()
    with pytest.raises(ConfigurationError, match=r"kind 'h200' \(it has local\); add \[periods\.replicas\.h200\]"):
        book.replica(book.periods[0], "h200")


@pytest.mark.parametrize("month", range(1, 13))
@pytest.mark.parametrize("year", [2024, 2026])
def test_a_calendar_month_is_one_month(year: int, month: int) -> None:
    begin = date(year, month, 1)
    end = date(year + month // 12, month % 12 + 1, 1)
    assert months_between(day(begin.isoformat()), day(end.isoformat())) == 1


@given(st.lists(st.integers(0, 4 * 366 * 86_400 * 10**6), min_size=3, max_size=3))
def test_months_of_parts_are_the_months_of_the_whole(offsets: list[int]) -> None:
    begin, middle, end = (day("2024-01-01") + timedelta(microseconds=n) for n in sorted(offsets))
    assert months_between(begin, middle) + months_between(middle, end) == months_between(begin, end)
    assert seconds(begin, middle) + seconds(middle, end) == seconds(begin, end)
    assert months_between(end, begin) == 0

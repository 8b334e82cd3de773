"""The price book: dated lists of prices from a TOML or JSON file, in Decimal. Reports read it; the ledger never does.

A period's list is complete in itself. Days are UTC; a period ends before its `valid_to`.
"""

from __future__ import annotations

import calendar
import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core_engine.errors import ConfigurationError

EXAMPLE = Path(__file__).with_name("example_prices.toml")

Price = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplicaPrice(_Entry):
    """`hour` buys the whole replica; `memory_share` of it is for KV memory, the rest for the device. A gap of at most
    `paid_gap_s` between two incarnations is paid."""

    hour: Price
    memory_share: Annotated[Decimal, Field(ge=0, le=1)] = Decimal(0)
    paid_gap_s: Annotated[Decimal, Field(ge=0)] = Decimal(900)


class StoragePrice(_Entry):
    gb: Price
    gb_month: Price


class Prices(_Entry):
    """The list of one period."""

    valid_from: date
    valid_to: date | None = None
    reads_per_million: Price = Decimal(0)
    caller_cpu_hour: Price = Decimal(0)
    replicas: dict[str, ReplicaPrice] = {}
    storage: dict[str, StoragePrice] = {}
    fixed: dict[str, Price] = {}

    @property
    def from_at(self) -> datetime:
        return datetime.combine(self.valid_from, time(), UTC)

    @property
    def to_at(self) -> datetime:
        return datetime.max.replace(tzinfo=UTC) if self.valid_to is None else _midnight(self.valid_to)


class _Book(_Entry):
    name: str
    currency: str
    is_example: bool = False
    periods: list[Prices] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class PricedSpan:
    """Part of a window in which one list of prices holds; `months` is how many calendar months it is long."""

    from_at: datetime
    to_at: datetime
    prices: Prices

    @property
    def months(self) -> Fraction:
        return months_between(self.from_at, self.to_at)


@dataclass(frozen=True, slots=True)
class PriceBook:
    name: str
    currency: str
    is_example: bool
    periods: tuple[Prices, ...]
    source: str = ""

    def spans(self, from_at: datetime, to_at: datetime) -> Iterator[PricedSpan]:
        """The window cut where prices change.

        Raises:
            ConfigurationError: some of the window has no prices; the message names it.
        """
        reached = from_at
        for prices in self.periods:
            if prices.to_at <= reached or prices.from_at >= to_at:
                continue
            if prices.from_at > reached:
                break
            yield PricedSpan(reached, min(prices.to_at, to_at), prices)
            reached = min(prices.to_at, to_at)
        if reached < to_at:
            raise ConfigurationError(
                f"price book {self.source} has no prices for {reached:%Y-%m-%d}; add a period that holds then"
            )

    def replica(self, prices: Prices, kind: str) -> ReplicaPrice:
        """Raises `ConfigurationError` where this kind of replica has no price."""
        if kind not in prices.replicas:
            listed = ", ".join(sorted(prices.replicas)) or "none"
            raise ConfigurationError(
                f"price book {self.source}, period from {prices.valid_from}: no price for replicas of kind {kind!r} "
                f"(it has {listed}); add [periods.replicas.{kind}] with its price per hour"
            )
        return prices.replicas[kind]


def load_price_book(path: Path | None = None) -> PriceBook:
    """The price book at `path` (`.toml` or `.json`); without one, the committed example.

    Raises:
        ConfigurationError: absent, malformed, a negative price, or periods that overlap; the message names the place.
    """
    path = path or EXAMPLE
    try:
        book = _Book.model_validate(_parser(path)(path.read_text()))
    except FileNotFoundError:
        raise ConfigurationError(f"price book {path} does not exist; see HEADRACE_COSTS__PRICE_BOOK") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"price book {path}: {where} = {first['input']!r}: {first['msg']}") from None
    except (OSError, ValueError) as error:  # tomllib and json raise ValueErrors
        raise ConfigurationError(f"price book {path} cannot be read: {error}") from None
    return PriceBook(book.name, book.currency, book.is_example, _in_order(book.periods, path), str(path))


def _parser(path: Path) -> Callable[[str], Any]:
    if path.suffix == ".json":
        return lambda text: json.loads(text, parse_float=Decimal)
    return lambda text: tomllib.loads(text, parse_float=Decimal)


def _in_order(periods: list[Prices], path: Path) -> tuple[Prices, ...]:
    ordered = sorted(periods, key=lambda prices: prices.valid_from)
    for prices in ordered:
        if prices.from_at >= prices.to_at:
            raise ConfigurationError(
                f"price book {path}: the period from {prices.valid_from} ends on {prices.valid_to}, before it begins"
            )
    for earlier, later in pairwise(ordered):
        if earlier.to_at > later.from_at:
            ends = f"ends on {earlier.valid_to}" if earlier.valid_to else "has no end"
            raise ConfigurationError(
                f"price book {path}: the period from {earlier.valid_from} {ends}, "
                f"and the next begins on {later.valid_from}; periods may not overlap"
            )
    return tuple(ordered)


def months_between(from_at: datetime, to_at: datetime) -> Fraction:
    """Calendar months in UTC, exactly: a whole month is 1, however many days it has."""
    total, begin = Fraction(0), from_at.astimezone(UTC)
    end = to_at.astimezone(UTC)
    while begin < end:
        first = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(first.year * 12 + first.month, 12)
        following = min(_midnight(date(year, month + 1, 1)), end)
        num_days = calendar.monthrange(first.year, first.month)[1]
        total += seconds(begin, following) / (num_days * 86_400)
        begin = following
    return total


def seconds(from_at: datetime, to_at: datetime) -> Fraction:
    """Exactly, to the microsecond that instants have."""
    span = to_at - from_at
    return Fraction(span.days * 86_400 + span.seconds) + Fraction(span.microseconds, 1_000_000)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)

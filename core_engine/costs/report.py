"""The bill of a window, and the identity that it must satisfy. Pure data out; `headrace.cost` prints it.

    requests (device + memory + reads + caller CPU) + idle + loading + overhead + storage + fixed + unattributed
        == replica time x price + reads x price + caller CPU x price + storage + fixed

Every term on the left but `unattributed` is measured on its own; `unattributed` alone is the difference. A replica's
price is split once, by `memory_share` m of its price book: while it is busy, (1 - m) goes by device seconds and m by
the KV blocks held, blocks that nobody holds being idle; time that is not busy goes whole to its own term. So no second
is paid twice. All arithmetic is rational; money is rounded once, at the end, so that the cells add up to the total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from sqlalchemy import Connection, Engine

from core_engine.costs.prices import PriceBook, PricedSpan, Prices, ReplicaPrice
from core_engine.costs.quantities import (
    NOWHERE,
    Count,
    DeviceUse,
    Gap,
    Key,
    LedgerEmpty,
    Missing,
    Window,
    caller_uses,
    counts,
    device_uses,
    gaps,
    known_window,
    missing,
    replica_times,
)

QUANTUM = Decimal("1e-9")  # of the currency: a millionth of a token's price is still seen
MAX_UNATTRIBUTED = Decimal("0.005")
HOUR_S = 3600
BY = ("path", "predictor")
NO_COUNT = Count()


class Term(StrEnum):
    """What the money of the left side went to."""

    DEVICE = "device"
    MEMORY = "memory"
    READS = "reads"
    CALLER_CPU = "caller_cpu"
    IDLE = "idle"
    LOADING = "loading"
    OVERHEAD = "overhead"
    STORAGE = "storage"
    FIXED = "fixed"
    UNATTRIBUTED = "unattributed"


REQUESTS = (Term.DEVICE, Term.MEMORY, Term.READS, Term.CALLER_CPU)


class Source(StrEnum):
    """What the right side is paid for."""

    REPLICAS = "replicas"
    READS = "reads"
    CALLER_CPU = "caller_cpu"
    STORAGE = "storage"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Line:
    """One key of the report; lines of what no request caused have a key in brackets and count no attempts."""

    key: Key
    terms: Mapping[Term, Decimal]
    count: Count = NO_COUNT

    @property
    def total(self) -> Decimal:
        return sum(self.terms.values(), Decimal(0))

    @property
    def requests(self) -> Decimal:
        """What its requests cost, without a share of what no request caused."""
        return sum((self.terms.get(term, Decimal(0)) for term in REQUESTS), Decimal(0))


@dataclass(frozen=True, slots=True)
class CostReport:
    """Money in `currency`, to a billionth. `left` is what the lines add up to, `right` what was paid for.

    `seconds` are those of the replicas: `paid`, and what they went to. `notes` name what the facts lack.
    """

    from_at: datetime
    to_at: datetime
    by: tuple[str, ...]
    price_book: str
    is_example: bool
    currency: str
    lines: tuple[Line, ...]
    total: Line
    sources: Mapping[Source, Decimal]
    left: Decimal
    right: Decimal
    unattributed_share: Decimal
    closes: bool
    seconds: Mapping[str, Decimal]
    notes: tuple[str, ...]


class Bill:
    """Cells of the left side by key and term, and the sources of the right side; exact until they are rounded."""

    def __init__(self, by: Sequence[str]) -> None:
        self.by = tuple(by)
        self.cells: defaultdict[tuple[Key, Term], Fraction] = defaultdict(Fraction)
        self.sources: defaultdict[Source, Fraction] = defaultdict(Fraction)
        self.seconds: defaultdict[str, Fraction] = defaultdict(Fraction)

    def common(self, name: str) -> Key:
        """The key of a line that no request caused."""
        return (*(NOWHERE for _ in self.by[1:]), f"({name})")

    def settle(self) -> None:
        """The difference between the sides, known only now that all else is there."""
        difference = sum(self.sources.values(), Fraction(0)) - sum(self.cells.values(), Fraction(0))
        self.cells[self.common("replicas"), Term.UNATTRIBUTED] = difference


def build(database: Engine, book: PriceBook, window: Window | None = None, by: Sequence[str] = BY) -> CostReport:
    """The report of `window`, or of everything that the ledger knows. Load the spools first.

    Raises:
        LedgerEmpty: nothing is known of the window.
        ConfigurationError: the price book has no price for a day or a kind of replica in it.
        InvalidRequest: `by` names something else than dimensions.
    """
    with database.connect() as connection:
        known = known_window(connection)
        window = window or known
        bill = Bill(by)
        for span in book.spans(window.from_at, window.to_at):
            _price(connection, book, span, bill)
        by_key, counted = counts(connection, window, by)
        if not bill.seconds["paid"] and not counted.attempts:
            raise LedgerEmpty(
                f"the ledger knows nothing of {window.from_at.isoformat()} to {window.to_at.isoformat()}; "
                f"it knows {known.from_at.isoformat()} to {known.to_at.isoformat()}"
            )
        bill.settle()
        return _report(bill, book, window, by_key, counted, _notes(missing(connection, window), bill))


# -- prices on quantities


def _price(connection: Connection, book: PriceBook, span: PricedSpan, bill: Bill) -> None:
    window, prices = Window(span.from_at, span.to_at), span.prices
    for use in device_uses(connection, window, bill.by):
        _price_use(use, book.replica(prices, use.kind), bill)
    _price_times(connection, window, book, prices, bill)
    for gap in gaps(connection, window, bill.by):
        _price_gap(gap, book.replica(prices, gap.kind), bill)
    _price_callers(connection, window, prices, bill)
    platform = bill.common("platform")
    for storage in prices.storage.values():
        paid = Fraction(storage.gb) * Fraction(storage.gb_month) * span.months
        bill.cells[platform, Term.STORAGE] += paid
        bill.sources[Source.STORAGE] += paid
    for month in prices.fixed.values():
        bill.cells[platform, Term.FIXED] += Fraction(month) * span.months
        bill.sources[Source.FIXED] += Fraction(month) * span.months


def _price_use(use: DeviceUse, price: ReplicaPrice, bill: Bill) -> None:
    second, memory = Fraction(price.hour) / HOUR_S, Fraction(price.memory_share)
    bill.cells[use.key, Term.DEVICE] += use.device_s * second * (1 - memory)
    bill.cells[use.key, Term.MEMORY] += use.memory_s * second * memory
    bill.seconds["device"] += use.device_s


def _price_times(connection: Connection, window: Window, book: PriceBook, prices: Prices, bill: Bill) -> None:
    common = bill.common("replicas")
    for time in replica_times(connection, window):
        price = book.replica(prices, time.kind)
        second, memory = Fraction(price.hour) / HOUR_S, Fraction(price.memory_share)
        bill.sources[Source.REPLICAS] += time.wall_s * second
        bill.cells[common, Term.LOADING] += time.loading_s * second
        bill.cells[common, Term.OVERHEAD] += time.overhead_s * second
        idle = (time.idle_s + time.free_memory_s * memory) * second
        seats = time.interactive_seats + time.bulk_seats
        interactive = Fraction(time.interactive_seats, seats) if seats else Fraction(1, 2)
        bill.cells[bill.common("idle, interactive pool"), Term.IDLE] += idle * interactive
        bill.cells[bill.common("idle, bulk pool"), Term.IDLE] += idle * (1 - interactive)
        for name, spent in (
            ("paid", time.wall_s),
            ("loading", time.loading_s),
            ("overhead", time.overhead_s),
            ("idle", time.idle_s),
        ):
            bill.seconds[name] += spent


def _price_gap(gap: Gap, price: ReplicaPrice, bill: Bill) -> None:
    """A gap up to the price book's limit was paid; of a longer one, only what is known to have been used.

    Between incarnations, what is not charged is overhead. Within one, facts were lost: it stays unattributed.
    """
    second, memory = Fraction(price.hour) / HOUR_S, Fraction(price.memory_share)
    for use in gap.uses:
        _price_use(use, price, bill)
    used_s = sum((use.device_s for use in gap.uses), Fraction(0))
    held_s = sum((use.memory_s for use in gap.uses), Fraction(0))
    length_s = gap.length_s * gap.share
    is_paid = not gap.is_restart or gap.length_s <= Fraction(price.paid_gap_s)
    # blocks that were held are time too: the fact of whoever ran meanwhile may be the one that was lost
    paid_s = length_s if is_paid else min(length_s, max(used_s, held_s))
    bill.sources[Source.REPLICAS] += paid_s * second
    bill.seconds["paid"] += paid_s
    if gap.is_restart:
        rest_s = paid_s - used_s * (1 - memory) - held_s * memory
        bill.cells[bill.common("replicas"), Term.OVERHEAD] += max(rest_s, Fraction(0)) * second
        bill.seconds["stopped" if gap.was_stopped else "dead"] += max(paid_s - used_s, Fraction(0))
    else:
        bill.seconds["lost_facts"] += length_s
    if not is_paid:
        bill.seconds["given_back"] += length_s - paid_s


def _price_callers(connection: Connection, window: Window, prices: Prices, bill: Bill) -> None:
    read, cpu_s = Fraction(prices.reads_per_million) / 1_000_000, Fraction(prices.caller_cpu_hour) / HOUR_S
    for use in caller_uses(connection, window, bill.by):
        bill.cells[use.key, Term.READS] += use.reads * read
        bill.cells[use.key, Term.CALLER_CPU] += use.caller_cpu_s * cpu_s
        bill.sources[Source.READS] += use.reads * read
        bill.sources[Source.CALLER_CPU] += use.caller_cpu_s * cpu_s


# -- from rationals to money


def rounded(exact: Sequence[Fraction], quantum: Decimal = QUANTUM) -> list[Decimal]:
    """Each value to a multiple of `quantum`, less than one off, so that they add up to their rounded sum.

    Largest remainder: all are rounded down, then those that lost most are given what is left.
    """
    units = [value / Fraction(quantum) for value in exact]
    floors = [value.__floor__() for value in units]
    left = round(sum(units, Fraction(0))) - sum(floors)
    by_loss = sorted(range(len(units)), key=lambda index: floors[index] - units[index])
    for index in by_loss[:left]:
        floors[index] += 1
    return [floor * quantum for floor in floors]


def _report(
    bill: Bill, book: PriceBook, window: Window, by_key: Mapping[Key, Count], counted: Count, notes: tuple[str, ...]
) -> CostReport:
    lines = _lines(bill, by_key)
    amounts = rounded(list(bill.sources.values()))
    sources = dict(zip(bill.sources, amounts, strict=True))
    total = Line(
        ("total", *("" for _ in bill.by[1:])),
        {term: sum((line.terms.get(term, Decimal(0)) for line in lines), Decimal(0)) for term in Term},
        counted,
    )
    left, right = total.total, sum(sources.values(), Decimal(0))
    share = _share(total.terms[Term.UNATTRIBUTED], right)
    return CostReport(
        from_at=window.from_at,
        to_at=window.to_at,
        by=bill.by,
        price_book=book.name,
        is_example=book.is_example,
        currency=book.currency,
        lines=tuple(lines),
        total=total,
        sources=sources,
        left=left,
        right=right,
        unattributed_share=share,
        closes=left == right and share <= MAX_UNATTRIBUTED,
        seconds={name: _decimal(spent) for name, spent in bill.seconds.items()},
        notes=notes,
    )


def _lines(bill: Bill, by_key: Mapping[Key, Count]) -> list[Line]:
    """Lines by cost, what no request caused last; a key that only attempts are counted for has a line of zeros."""
    amounts = dict(zip(bill.cells, rounded(list(bill.cells.values())), strict=True))
    terms: dict[Key, dict[Term, Decimal]] = {key: {} for key in by_key}
    for (key, term), amount in amounts.items():
        terms.setdefault(key, {})[term] = amount
    lines = [Line(key, of, by_key.get(key, NO_COUNT)) for key, of in terms.items()]
    return sorted(lines, key=lambda line: (line.key[-1].startswith("("), -line.total, line.key))


def _share(unattributed: Decimal, right: Decimal) -> Decimal:
    if not right:
        return Decimal(0) if not unattributed else Decimal(1)
    return abs(unattributed / right).quantize(Decimal("1e-6"))


def _decimal(value: Fraction) -> Decimal:
    return rounded([value], Decimal("1e-6"))[0]


def _notes(lacks: Missing, bill: Bill) -> tuple[str, ...]:
    """One sentence for everything that a reader must know of the facts behind the numbers."""

    def said() -> Iterable[str]:
        if lacks.without_device:
            yield f"{lacks.without_device} attempts answered by the model lack the engine's fact"
        if lacks.without_caller:
            yield f"{lacks.without_caller} attempts lack a caller's fact: their reads and caller CPU are not known"
        if lacks.unended:
            yield f"{lacks.unended} attempts were running when their replica last told of them: charged up to then"
        if lacks.bad_lines:
            yield f"{lacks.bad_lines} spool lines could not be read (table ledger_spool_faults)"
        if lacks.pending_s:
            yield f"{float(lacks.pending_s):.3f} device seconds are not in yet: their interval has not been told"
        for name, text in (
            ("stopped", "from a replica's stop to its next start, counted as overhead"),
            ("dead", "from the last word of a replica that died to its next start, counted as overhead"),
            ("lost_facts", "of a running replica without facts, left unattributed"),
            ("given_back", "of replicas that were down for longer than the price book pays, not paid"),
        ):
            if bill.seconds[name]:
                yield f"{float(bill.seconds[name]):.3f} s {text}"

    return tuple(said())

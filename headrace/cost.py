"""Composition root of `headrace cost`: settings, database, spools and price book in; a report on the screen out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from core_engine.costs.loader import Loaded, load_spools
from core_engine.costs.prices import load_price_book
from core_engine.costs.quantities import Window, known_window
from core_engine.costs.report import CostReport, Line, Term, build
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from headrace.migrations import upgrade


def load(settings: Settings) -> Loaded:
    """Take what is new in this state folder's spools into the ledger.

    Raises:
        ConfigurationError: the database or a spool cannot be opened.
    """
    with ledger(settings) as database:
        return _load(database, settings.spool_dir)


def report(settings: Settings, *, begin: str | None = None, end: str | None = None, by: str = "") -> CostReport:
    """Load the spools, then price a window; without bounds, everything that the ledger knows.

    Raises:
        LedgerEmpty, ConfigurationError, InvalidRequest: see `core_engine.costs.report.build`.
    """
    book = load_price_book(settings.costs.price_book)
    with ledger(settings) as database:
        _load(database, settings.spool_dir)
        dimensions = tuple(name.strip() for name in by.split(",") if name.strip())
        return build(database, book, _window(database, begin, end), dimensions)


@contextmanager
def ledger(settings: Settings) -> Iterator[Engine]:
    """The database, brought to the newest revision."""
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    try:
        yield database
    except OperationalError as error:
        raise ConfigurationError(f"database {database.url!r} cannot be used: {error.orig}") from None
    finally:
        database.dispose()


def _load(database: Engine, spools: Path) -> Loaded:
    try:
        return load_spools(database, spools)
    except OSError as error:
        raise ConfigurationError(f"spool {error.filename or spools} cannot be read: {error.strerror}") from None


def _window(database: Engine, begin: str | None, end: str | None) -> Window | None:
    if begin is None and end is None:
        return None
    with database.connect() as connection:
        known = known_window(connection)
    return Window(
        known.from_at if begin is None else instant(begin, "--from"),
        known.to_at if end is None else instant(end, "--to"),
    )


def instant(text: str, option: str) -> datetime:
    """An ISO 8601 instant with its offset, or a day, which is UTC's.

    Raises:
        InvalidRequest: neither; the sentence names the option.
    """
    try:
        if len(text) == len("2026-01-31"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        parsed = datetime.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise InvalidRequest(
            f"{option} = {text!r}, expected a day (2026-01-31) or an instant with its offset", field=option
        )
    return parsed


def to_json(of: CostReport) -> str:
    """The report as JSON; money and seconds are strings, so that no reader makes floats of them."""
    return msgspec.json.format(msgspec.json.encode(of), indent=2).decode()


def show_loaded(loaded: Loaded, console: Console) -> None:
    console.print(f"{loaded.facts} facts from {loaded.files} spool files")
    if loaded.bad_lines:
        console.print(f"{loaded.bad_lines} lines could not be read: see table ledger_spool_faults")
    for name in loaded.unfinished:
        console.print(f"{name}: its last line is unfinished and was left for next time")
    for name in loaded.foreign:
        console.print(f"{name}: written by another release; left out")


def show(of: CostReport, console: Console) -> None:
    """The report as a screen: a table of lines by terms, both sides, and what the facts lack."""
    console.print(_table(of))
    sources = " + ".join(f"{name} {_money(amount)}" for name, amount in of.sources.items())
    console.print(f"paid: {sources} = {_money(of.right)} {of.currency}")
    spent = ", ".join(f"{name} {float(of.seconds[name]):.1f}" for name in of.seconds if of.seconds[name])
    console.print(f"replica seconds: {spent}")
    verdict = "closes" if of.closes else "does NOT close"
    share = 100 * of.unattributed_share
    console.print(f"left {of.left} = right {of.right}; unattributed {share:.4f} % of it (limit 0.5 %): {verdict}")
    for note in of.notes:
        console.print(f"note: {note}")
    if of.is_example:
        console.print(f"The prices are made up (price book {escape(of.price_book)}); set HEADRACE_COSTS__PRICE_BOOK.")


def _table(of: CostReport) -> Table:
    spent = [term for term in Term if of.total.terms[term] or term is Term.UNATTRIBUTED]
    title = f"Cost in {of.currency}, {of.from_at:%Y-%m-%d %H:%M:%S} to {of.to_at:%Y-%m-%d %H:%M:%S} UTC"
    table = Table(title=title, title_justify="left")
    for name in of.by:
        table.add_column(name)
    table.add_column("attempts", justify="right")
    table.add_column("deliveries", justify="right")
    table.add_column("terms")  # one cell: eight columns of six digits fit no terminal
    table.add_column("total", justify="right")
    for line in of.lines:
        table.add_row(*_cells(line, spent))
    table.add_section()
    table.add_row(*_cells(of.total, spent), style="bold")
    return table


def _cells(line: Line, terms: list[Term]) -> list[str]:
    counted = [str(line.count.attempts or ""), str(line.count.deliveries or "")]
    amounts = "\n".join(f"{term} {_money(line.terms[term])}" for term in terms if line.terms.get(term))
    return [*map(escape, line.key), *counted, amounts, _money(line.total)]


def _money(amount: Decimal) -> str:
    return f"{amount:.6f}"

"""`headrace features consistency`: what was served against what history says, recomputed, stored and shown per day.

Days are UTC's. It needs no Redis: served rows are in the state folder's served log, views and watermarks in the
registry, history where the views say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from featurestore.consistency.comparison import Outcome
from featurestore.consistency.findings import FeatureDay, Findings
from featurestore.consistency.log_files import DAY_US, Fault, read_log
from featurestore.consistency.plot import plot
from featurestore.consistency.recompute import ViewVersion, recompute
from featurestore.consistency.results import store_days
from featurestore.instants import to_us, utc_now
from featurestore.offline.source import NO_SHIFT
from featurestore.registry import load_on_demand_views, load_views
from featurestore.tables import WatermarkRecord
from headrace.migrations import upgrade

COLUMNS = ("day", "feature", "samples", "mismatch %", "missing %", "stale %", "what differs", "why", "oldest")


@dataclass(frozen=True, slots=True)
class ConsistencyOptions:
    """Days of UTC from `begin` up to `end`, which is left out (at midnight, naive); None: all that the log holds.

    `shift` is added to all times of history, as where it was materialised. Past `max_mismatch`, a ratio, of any feature
    on any day the command fails.
    """

    begin: datetime | None = None
    end: datetime | None = None
    shift: timedelta = NO_SHIFT
    max_mismatch: float | None = None
    plot_file: Path | None = None
    is_json: bool = False


def run_consistency(settings: Settings, options: ConsistencyOptions, console: Console) -> bool:
    """Recompute, store, print (a table, or JSON), plot; whether every view was judged and is within the limit.

    Raises:
        ConfigurationError: the database or the log cannot be read, a file cannot be written.
    """
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    try:
        findings = find(database, settings.served_dir, options)
        with Session(database) as session, session.begin():
            store_days(session, findings.days, utc_now())
    finally:
        database.dispose()
    past = _past_limit(findings, options.max_mismatch)
    if options.is_json:
        console.out(to_json(findings, past), highlight=False)
    else:
        show(findings, past, console)
    if options.plot_file is not None:
        plot(findings.days, options.plot_file)
    return not findings.failures and not past


def find(database: Engine, folder: Path, options: ConsistencyOptions) -> Findings:
    """The served rows of the days asked for, recomputed by the registered views, deleted ones included."""
    begin_us, end_us = _bounds(options)
    with Session(database) as session:
        views = load_views(session, with_deleted=True)
        on_demand_views = load_on_demand_views(session, with_deleted=True)
        materialized = _watermarks(session)
    faults: list[Fault] = []
    try:
        rows = read_log(folder, begin_us, end_us, faults)
        findings = recompute(rows, views, on_demand_views, options.shift, materialized)
    except OSError as error:
        raise ConfigurationError(f"served log {error.filename or folder} cannot be read: {error.strerror}") from None
    return replace(findings, faults=tuple(faults))


def _bounds(options: ConsistencyOptions) -> tuple[int, int]:
    days = (options.begin, options.end)
    begin_us, end_us = (None if day is None else to_us(day.replace(tzinfo=UTC), "day") for day in days)
    last_us = to_us(utc_now(), "now") + DAY_US
    return begin_us or 0, last_us if end_us is None else end_us


def _watermarks(session: Session) -> dict[ViewVersion, datetime]:
    known = session.scalars(select(WatermarkRecord).where(WatermarkRecord.watermark.is_not(None)))
    return {(each.name, each.version): each.watermark for each in known if each.watermark is not None}


def to_json(findings: Findings, past_limit: Sequence[str] = ()) -> str:
    """Everything found, with the ratios of each feature and day."""
    days = [
        msgspec.structs.asdict(day)
        | {
            "samples": day.samples,
            "mismatch_ratio": day.mismatch_ratio,
            "missing_ratio": day.missing_ratio,
            "stale_ratio": day.stale_ratio,
        }
        for day in findings.days
    ]
    faults = [{"file": fault.path.name, "offset": fault.offset, "what": fault.what} for fault in findings.faults]
    report: dict[str, Any] = {"rows": findings.rows, "days": days, "failures": findings.failures, "faults": faults}
    report["past_limit"] = list(past_limit)
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def show(findings: Findings, past_limit: Sequence[str], console: Console) -> None:
    """A table per feature and day, and in sentences what could not be judged and what is past the limit."""
    if findings.days:
        table = Table(title=f"{findings.rows} served rows against history, UTC days")
        for name in COLUMNS:
            table.add_column(name, justify="right" if name in COLUMNS[2:6] else "left", overflow="fold")
        for day in findings.days:
            table.add_row(*map(escape, _cells(day)))
        console.print(table)
    else:
        console.print("No served row of these days is in the log: see HEADRACE_FEATURES__SERVED_SAMPLE_RATE.")
    failures = [f"{view} could not be judged: {why}" for view, why in findings.failures.items()]
    faults = [f"{fault.path.name} is read up to byte {fault.offset}: {fault.what}" for fault in findings.faults]
    for line in (*failures, *faults, *past_limit):
        console.print(escape(line), soft_wrap=True)


def _cells(day: FeatureDay) -> tuple[str, ...]:
    ratios = (day.mismatch_ratio, day.missing_ratio, day.stale_ratio)
    differing = {outcome: n for outcome, n in day.outcomes.items() if outcome is not Outcome.MATCH}
    return (
        day.day.isoformat(),
        _name(day),
        str(day.samples),
        *(f"{100 * ratio:.2f}" for ratio in ratios),
        _counts(differing),
        _counts(day.causes),
        "-" if day.oldest_s is None else f"{day.oldest_s:.0f} s",
    )


def _counts(counts: dict[Any, int]) -> str:
    return ", ".join(f"{word} {count}" for word, count in counts.items()) or "-"


def _past_limit(findings: Findings, limit: float | None) -> list[str]:
    if limit is None:
        return []
    return [
        f"{_name(day)} on {day.day}: mismatch ratio {day.mismatch_ratio:.4g} is past the limit {limit:g}"
        for day in findings.days
        if day.mismatch_ratio > limit
    ]


def _name(day: FeatureDay) -> str:
    return f"{day.view}:{day.version}.{day.feature}"

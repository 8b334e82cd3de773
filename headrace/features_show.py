"""What `headrace features` prints: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core_engine.contracts import FeatureRow
from core_engine.predictors.plan import duration
from featurestore.lifecycle.changes import Change, Verdict
from featurestore.lifecycle.checks import Check, Health
from featurestore.windows.history import Backfilled
from headrace.features import Outcome, Registered

COLORS = {
    Verdict.NEW: "green",
    Verdict.BACK: "green",
    Verdict.UPDATED: "yellow",
    Verdict.REFUSED: "red",
    Health.OK: "green",
    Health.WARNING: "yellow",
    Health.PROBLEM: "red",
}


def to_json(value: Any) -> str:
    """Any report, with instants as ISO 8601 and what has no JSON type (bytes, decimals) as a string."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str)).decode()


def show_changes(changes: Sequence[Change], console: Console) -> None:
    """What applying would do, one line each; fields that differ below it."""
    table = Table("", "declaration", "what differs", box=None, pad_edge=False)
    for change in changes:
        differing = "\n".join(map(str, change.differences))
        if change.advice is not None:
            differing += f"\n{change.advice}" if differing else change.advice
        table.add_row(_colored(change.verdict), escape(change.what), escape(differing))
    console.print(table)


def show_registered(all_of: Sequence[Registered], console: Console) -> None:
    if not all_of:
        console.print("No feature view is registered: headrace features apply MODULE:ATTRIBUTE")
        return
    names = ("view", "entity", "kind", "features", "TTL", "owner", "watermark")
    table = Table(*names)
    for each in all_of:
        view = each.view
        kind = "window" if view.window is not None else "rows"
        cells = (f"{view.name}:{view.version}", view.entity, kind, str(len(view.schema)), duration(view.ttl_s))
        table.add_row(*map(escape, (*cells, view.owner, _watermark(each))))
    console.print(table)


def show_described(of: Registered, console: Console) -> None:
    """One view in full."""
    view = of.view
    facts = {
        "view": f"{view.name}:{view.version}",
        "about": view.description or "-",
        "entity": view.entity,
        "owner": view.owner,
        "TTL": duration(view.ttl_s),
        "source": view.source.path,
        "clocks": f"{view.source.event_time_column} (event), {view.source.created_time_column} (created)",
        "watermark": _watermark(of),
    }
    if view.window is not None:
        window = view.window
        facts["window"] = f"{window.num_tiles} tiles of {duration(window.tile_s)} from the events of {window.topic}"
    _show_facts(facts, console)
    table = Table("feature", "type", "default")
    for field in view.schema:
        kind = f"list of {field.type}" if field.is_list else str(field.type)
        table.add_row(*map(escape, (field.name, kind, "-" if field.default is None else repr(field.default))))
    console.print(table)


def show_outcomes(outcomes: Iterable[Outcome], console: Console) -> None:
    """What became of each view's run."""
    for outcome in outcomes:
        report = outcome.report
        if report is None:
            console.print(f"[red]✗[/red] {escape(outcome.view)}: {escape(outcome.error or '')}", soft_wrap=True)
            continue
        resumed = ", going on with a run that stopped" if report.is_resumed else ""
        counts = f"{report.entities} rows: {report.written} written, {report.kept} kept out by rows as new or newer"
        counts += f", {report.expired} too old to hold" if report.expired else ""
        console.print(
            escape(
                f"{outcome.view}: {report.kind} ({report.why}){resumed}; {counts}; watermark {_at(report.watermark)}"
            ),
            soft_wrap=True,
        )


def show_backfilled(view: str, done: Backfilled, seconds: float, console: Console) -> None:
    console.print(
        escape(
            f"{view}: {done.rows} rows and {done.tiles} tiles of {done.entities} entities from {done.events} events"
            f" in {seconds:.1f} s"
        ),
        soft_wrap=True,
    )


def show_row(row: FeatureRow, console: Console) -> None:
    """The five states as they are; ages in seconds."""
    table = Table("feature", "value", "state", "age")
    for ref, found in row.values.items():
        age = "-" if found.age_s is None else f"{found.age_s:.1f} s"
        table.add_row(*map(escape, (ref, "-" if found.value is None else repr(found.value), found.state.value, age)))
    console.print(table)


def show_checks(checks: Sequence[Check], console: Console) -> None:
    """Every check, and how many are not ok."""
    table = Table("", "of", "check", "found, and what to do")
    for check in checks:
        said = check.found + (f"\n{check.advice}" if check.advice else "")
        table.add_row(_colored(check.health), *map(escape, (check.subject, check.name, said)))
    console.print(table)
    counts = {health: sum(check.health is health for check in checks) for health in Health}
    console.print(f"{counts[Health.PROBLEM]} problems, {counts[Health.WARNING]} warnings, {counts[Health.OK]} ok")


def _show_facts(facts: dict[str, str], console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(f"[dim]{name}[/dim]", escape(value))
    console.print(table)


def _colored(word: Verdict | Health) -> str:
    color = COLORS.get(word, "dim")
    return f"[{color}]{word}[/{color}]"


def _watermark(of: Registered) -> str:
    held = "" if of.standing.holder is None else f", being written by {of.standing.holder}"
    unfinished = "" if of.standing.run is None else ", a run is unfinished"
    return _at(None if of.standing.watermark is None else of.standing.watermark.at) + (held or unfinished)


def _at(instant: datetime | None) -> str:
    return "-" if instant is None else f"{instant:%Y-%m-%d %H:%M:%S} UTC"

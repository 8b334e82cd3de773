"""Composition root of `headrace diagnose`: the spools of a state folder, or one file, in; a diagnosis out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core_engine.costs.diagnosis import Diagnosis, Finding, GroupDiagnosis, NoRecords, diagnose
from core_engine.costs.facts import SCHEMA, CallerFact, DeviceFact, Fact
from core_engine.costs.spool import SpoolContents, read_spool
from core_engine.errors import ConfigurationError
from core_engine.settings import Settings


@dataclass(frozen=True, slots=True)
class Found:
    """Facts of the time asked about, and what of the files could not be used."""

    facts: tuple[Fact, ...]
    notes: tuple[str, ...]


def diagnosed(settings: Settings, minutes: float, file: Path | None, slow_share: float) -> Diagnosis:
    """What slow requests of the last `minutes` waited for; with a `file`, of everything that it holds.

    Raises:
        NoRecords: no request there.
        ConfigurationError: a file that cannot be read.
    """
    if file is not None:
        found, where = _found([file], None), str(file)
    else:
        since = datetime.now(UTC) - timedelta(minutes=minutes)
        found = _found(_changed_since(settings.spool_dir, since), since)
        where = f"{settings.spool_dir} of the last {minutes:g} minutes"
    try:
        made = diagnose(found.facts, slow_share)
    except NoRecords as nothing:
        raise NoRecords(f"{where}: {'; '.join((str(nothing), *found.notes))}") from None
    return Diagnosis(made.from_at, made.to_at, made.requests, made.groups, (*made.notes, *found.notes))


def to_json(made: Diagnosis) -> str:
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode()


def show(made: Diagnosis, console: Console) -> None:
    """A table of where slow requests' time went, then what stands out and what would help."""
    table = Table(
        title=f"{made.requests} requests, {made.from_at:%Y-%m-%d %H:%M:%S} to {made.to_at:%H:%M:%S} UTC",
        title_justify="left",
    )
    for name in ("predictor", "path", "requests", "late", "p50 ms", "p99 ms", "slow", "their time goes to"):
        table.add_column(name, justify="left" if name in ("predictor", "path", "their time goes to") else "right")
    for group in made.groups:
        table.add_row(*_cells(group))
    console.print(table)
    for group in made.groups:
        console.print(f"[bold]{escape(group.predictor)}[/bold], {group.path}:", highlight=False)
        for finding in group.findings:
            console.print(f"  {escape(_sentence(finding))}", highlight=False, soft_wrap=True)
    for note in made.notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)


def _cells(group: GroupDiagnosis) -> list[str]:
    shares = sorted(group.shares.items(), key=lambda item: item[1], reverse=True)
    return [
        escape(group.predictor),
        group.path,
        str(group.requests),
        str(group.late),
        f"{group.p50_ms:.1f}",
        "too few" if group.p99_ms is None else f"{group.p99_ms:.1f}",
        f"{group.slow} from {group.slower_than_ms:.1f} ms",
        ", ".join(f"{stage} {share:.0%}" for stage, share in shares if share >= 0.005),
    ]


def _sentence(finding: Finding) -> str:
    others = "" if finding.others_ms is None else f" (others {finding.others_ms:.1f} ms)"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in finding.figures.items())
    because = f" [{figures}]" if figures else ""
    return f"{finding.stage} {finding.slow_ms:.1f} ms{others}, {finding.share:.0%}: {finding.lever}{because}"


def _changed_since(folder: Path, since: datetime) -> list[Path]:
    return [path for path in sorted(folder.glob("*.jsonl")) if path.stat().st_mtime >= since.timestamp()]


def _found(paths: list[Path], since: datetime | None) -> Found:
    facts, notes = list[Fact](), list[str]()
    for path in paths:
        contents = _read(path)
        if contents.header is not None and contents.header.schema != SCHEMA:
            notes.append(f"{path.name} was written by another release; left out")
            continue
        bad = len(contents.bad_lines) - (contents.torn is not None)  # a torn last line: its writer may be at it
        if bad:
            notes.append(f"{bad} lines of {path.name} could not be read")
        facts += [fact for fact in contents.facts if since is None or _is_since(fact, since)]
    return Found(tuple(facts), tuple(notes))


def _read(path: Path) -> SpoolContents:
    try:
        return read_spool(path)
    except OSError as error:
        raise ConfigurationError(f"request records {path} cannot be read: {error.strerror}") from None


def _is_since(fact: Fact, since: datetime) -> bool:
    match fact:
        case CallerFact():
            return fact.answered_at >= since
        case DeviceFact():
            return fact.finished_at >= since
    return False

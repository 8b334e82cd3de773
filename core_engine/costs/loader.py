"""Fills the ledger from the spools: incremental, idempotent, safe against a crash at any point.

A chunk of a file and the position behind it go into the database in one transaction, so that a fact is taken or will
be. Facts are upserted, so that one that comes twice counts once. A last line without its end is left for next time:
its writer may be at it. Files may be loaded while they are written, and by two loaders at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, case, inspect, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from core_engine.costs.facts import (
    SCHEMA,
    CallerFact,
    ComparisonFact,
    DeviceFact,
    Fact,
    ReplicaFact,
    SpoolHeader,
)
from core_engine.costs.spool import decode_line
from core_engine.costs.tables import (
    Base,
    LedgerAttempt,
    LedgerCharge,
    LedgerComparison,
    LedgerInterval,
    SpoolFault,
    SpoolPosition,
)

CHUNK_BYTES = 1 << 20
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one call of `load_spools` took. `unfinished` files end in a line that has no end yet; `foreign` ones were
    left out whole, because another release wrote them."""

    files: int = 0
    facts: int = 0
    bad_lines: int = 0
    unfinished: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    def __add__(self, other: Loaded) -> Loaded:
        return Loaded(
            self.files + other.files,
            self.facts + other.facts,
            self.bad_lines + other.bad_lines,
            self.unfinished + other.unfinished,
            self.foreign + other.foreign,
        )


@dataclass(slots=True)
class Chunk:
    """Whole lines of one file, sorted by where they go. `end` is the offset behind the last.

    By primary key: no statement may meet the same row twice.
    """

    end: int
    callers: dict[str, Row] = field(default_factory=dict)
    devices: dict[str, Row] = field(default_factory=dict)
    charges: dict[tuple[str, int, str], Row] = field(default_factory=dict)
    comparisons: dict[str, Row] = field(default_factory=dict)
    intervals: dict[tuple[str, int], Row] = field(default_factory=dict)
    faults: list[Row] = field(default_factory=list)
    num_facts: int = 0


def load_spools(database: Engine, directory: Path, *, chunk_bytes: int = CHUNK_BYTES) -> Loaded:
    """Take every whole line of every spool in `directory` that the ledger does not have yet.

    Lines that are no facts are kept as faults. `chunk_bytes` bounds what is held in memory and in one transaction; a
    line longer than it is read whole. A directory that does not exist has no spools.

    Raises:
        OSError: a spool that cannot be read.
    """
    total = Loaded()
    for path in sorted(directory.glob("*.jsonl")):
        total += _load_file(database, path, chunk_bytes)
    return total


def _load_file(database: Engine, path: Path, chunk_bytes: int) -> Loaded:
    total = Loaded(files=1)
    with path.open("rb") as file:
        if _is_foreign(file.readline()):
            return total + Loaded(foreign=(path.name,))
        while True:
            with database.begin() as connection:
                offset = _position(connection, path.name)
                file.seek(offset)
                lines = file.readlines(chunk_bytes)
                whole = [line for line in lines if line.endswith(b"\n")]
                if not whole:
                    return total + Loaded(unfinished=(path.name,) if lines else ())
                chunk = _sorted(path.name, offset, whole)
                _put(connection, path.name, chunk)
            total += Loaded(facts=chunk.num_facts, bad_lines=len(chunk.faults))


def _is_foreign(first: bytes) -> bool:
    """Another release's facts may look like ours and mean something else."""
    try:
        header = decode_line(first)
    except ValueError:
        return False
    return isinstance(header, SpoolHeader) and header.schema != SCHEMA


def _position(connection: Connection, file: str) -> int:
    return connection.scalar(select(SpoolPosition.offset).where(SpoolPosition.file == file)) or 0


def _sorted(file: str, offset: int, lines: Sequence[bytes]) -> Chunk:
    chunk = Chunk(offset)
    for line in lines:
        try:
            item = decode_line(line)
        except ValueError as error:
            chunk.faults.append({"file": file, "offset": chunk.end, "fault": str(error)})
        else:
            if not isinstance(item, SpoolHeader):
                _sort(item, chunk)
        chunk.end += len(line)
    return chunk


def _sort(fact: Fact, chunk: Chunk) -> None:
    chunk.num_facts += 1
    match fact:
        case CallerFact():
            _keep_later(chunk.callers, _caller_row(fact), "answered_at")
        case DeviceFact():
            _keep_later(chunk.devices, _device_row(fact), "finished_at")
            chunk.charges[fact.incarnation, fact.interval, fact.attempt_id] = _charge_row(fact)
        case ComparisonFact():
            chunk.comparisons[fact.attempt_id] = msgspec.structs.asdict(fact)
        case ReplicaFact():
            chunk.intervals[fact.incarnation, fact.interval] = _interval_row(fact)


def _keep_later(rows: dict[str, Row], row: Row, instant: str) -> None:
    known = rows.get(row["attempt_id"])
    if known is None or known[instant] <= row[instant]:
        rows[row["attempt_id"]] = row


def _caller_row(fact: CallerFact) -> Row:
    return {
        "attempt_id": fact.attempt_id,
        "tenant": fact.tenant,
        "path": str(fact.path),
        "predictor": fact.predictor,
        "version": fact.version,
        "delivery_key": fact.delivery_key,
        "rung": str(fact.rung),
        "reason": None if fact.reason is None else str(fact.reason),
        "reads": fact.feature.reads,
        "read_hits": fact.feature.hits,
        "read_bytes": fact.feature.bytes,
        "read_round_trips": fact.feature.round_trips,
        "read_cached": fact.feature.cached,
        "caller_cpu_s": fact.caller_cpu_s,
        "delivered_in_time": fact.delivered_in_time,
        "arrived_at": fact.arrived_at,
        "answered_at": fact.answered_at,
    }


DEVICE_COLUMNS = (
    "replica",
    "outcome",
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "completion_tokens",
    "wasted_tokens",
    "rows",
    "finished_at",
)


def _device_row(fact: DeviceFact) -> Row:
    return {
        "attempt_id": fact.attempt_id,
        "tenant": fact.tenant,
        "path": str(fact.path),
        "predictor": fact.predictor,
        "version": fact.version,
        "pool": str(fact.pool),
        **{name: getattr(fact, name) for name in DEVICE_COLUMNS},
    }


def _charge_row(fact: DeviceFact) -> Row:
    return {
        "incarnation": fact.incarnation,
        "interval": fact.interval,
        "attempt_id": fact.attempt_id,
        "device_s": fact.interval_device_s,
        "kv_block_s": fact.interval_kv_block_s,
    }


def _interval_row(fact: ReplicaFact) -> Row:
    row = {name: getattr(fact, name) for name in ReplicaFact.__struct_fields__}
    return row | {"wall_s": (fact.to_at - fact.from_at).total_seconds()}


# -- into the database


def _put(connection: Connection, file: str, chunk: Chunk) -> None:
    _upsert(connection, LedgerAttempt, list(chunk.devices.values()))
    _upsert(connection, LedgerAttempt, list(chunk.callers.values()))
    _upsert(connection, LedgerCharge, list(chunk.charges.values()))
    _upsert(connection, LedgerComparison, list(chunk.comparisons.values()))
    _upsert(connection, LedgerInterval, list(chunk.intervals.values()))
    _upsert(connection, SpoolFault, chunk.faults)
    _upsert(connection, SpoolPosition, [{"file": file, "offset": chunk.end}])


def _upsert(connection: Connection, table: type[Base], rows: list[Row]) -> None:
    """Insert or overwrite by primary key."""
    if not rows:
        return
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(table)
    keys = [column.name for column in inspect(table).primary_key]
    new = statement.excluded
    changes: dict[str, Any] = {name: new[name] for name in rows[0] if name not in keys}
    condition = None
    if table is SpoolPosition:  # the slower of two loaders must not set it back
        condition = SpoolPosition.offset < new.offset
    elif table is LedgerAttempt:
        condition = _is_newer(changes, new)
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes, where=condition), rows)


def _is_newer(changes: dict[str, Any], new: Any) -> ColumnElement[bool]:
    """Within a side of an attempt the later fact stands: a spool that is loaded again must not make a finished attempt
    run. What both sides tell is the caller's to say."""
    if "answered_at" in changes:
        return or_(LedgerAttempt.answered_at.is_(None), LedgerAttempt.answered_at <= new.answered_at)
    for name in ("tenant", "path", "predictor", "version"):
        changes[name] = case((LedgerAttempt.answered_at.is_(None), new[name]), else_=getattr(LedgerAttempt, name))
    return or_(LedgerAttempt.finished_at.is_(None), LedgerAttempt.finished_at <= new.finished_at)

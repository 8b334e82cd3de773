"""Request traces: how many tokens came when. Three public formats, told apart by their first line.

TIMESTAMP,ContextTokens,GeneratedTokens        CSV, Azure LLM inference traces: arrivals in wall time
num_prefill_tokens,num_decode_tokens,...       CSV, lengths alone: a backlog, which has no arrivals
{"timestamp":, "input_length":, "output_length":, "hash_ids": [...]}   JSON lines, Mooncake: milliseconds; equal
                                               hash ids stand for equal prefixes, 512 tokens each
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core_engine.errors import ConfigurationError

PREFIX_TOKENS = 512  # what one hash id of a Mooncake trace stands for
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
MOONCAKE = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """`arrival_s` counts from the trace's first arrival; None in a backlog. `prefix_ids`: one per 512 prompt tokens."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    prefix_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in order of arrival; `is_timed` is False for a backlog."""

    name: str
    rows: tuple[TraceRow, ...]
    is_timed: bool


def read_trace(path: Path) -> Trace:
    """All rows of the trace at `path`.

    Raises:
        ConfigurationError: no such file, an unknown format, or a value that cannot be, by line and field.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            first = lines.readline()
            lines.seek(0)
            rows = list(_mooncake(path, lines) if first.startswith("{") else _csv(path, lines, first))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"trace {path} cannot be read: {error}") from None
    if not rows:
        raise ConfigurationError(f"trace {path} has no requests; expected one per line")
    return _from_its_start(path.name, rows)


def _from_its_start(name: str, rows: list[TraceRow]) -> Trace:
    if any(row.arrival_s is None for row in rows):
        return Trace(name, tuple(rows), is_timed=False)
    start = min(row.arrival_s or 0.0 for row in rows)
    moved = (
        TraceRow(row.prompt_tokens, row.output_tokens, (row.arrival_s or 0.0) - start, row.prefix_ids) for row in rows
    )
    return Trace(name, tuple(sorted(moved, key=lambda row: row.arrival_s or 0.0)), is_timed=True)


def _csv(path: Path, lines: Iterator[str], header: str) -> Iterator[TraceRow]:
    names = tuple(header.strip().split(","))
    if names[:3] == AZURE:
        read = _azure_row
    elif names[:2] == LENGTHS:
        read = _lengths_row
    else:
        raise ConfigurationError(
            f"trace {path}, line 1: {header.strip()[:80]!r} is no known header; "
            f"expected {','.join(AZURE)} or {','.join(LENGTHS)} or JSON lines"
        )
    for number, row in enumerate(csv.DictReader(lines), start=2):
        yield read(f"trace {path}, line {number}", row)


def _azure_row(where: str, row: Mapping[str, Any]) -> TraceRow:
    try:
        stamp = datetime.fromisoformat(row["TIMESTAMP"])
    except (ValueError, TypeError):
        raise _wrong(where, "TIMESTAMP", row["TIMESTAMP"], "a date and time") from None
    arrival_s = (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()  # only differences count
    return TraceRow(_count(where, row, "ContextTokens"), _count(where, row, "GeneratedTokens"), arrival_s)


def _lengths_row(where: str, row: Mapping[str, Any]) -> TraceRow:
    return TraceRow(_count(where, row, LENGTHS[0]), _count(where, row, LENGTHS[1]))


def _mooncake(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        where = f"trace {path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ConfigurationError(f"{where}: {line.strip()[:80]!r}, expected an object with {', '.join(MOONCAKE)}")
        stamp, ids = row.get("timestamp"), row.get("hash_ids", [])
        if not isinstance(stamp, int | float) or stamp < 0:
            raise _wrong(where, "timestamp", stamp, "milliseconds of at least 0")
        if not isinstance(ids, list) or not all(isinstance(each, int) and each >= 0 for each in ids):
            raise _wrong(where, "hash_ids", ids, "a list of whole numbers of at least 0")
        yield TraceRow(_count(where, row, MOONCAKE[1]), _count(where, row, MOONCAKE[2]), stamp / 1e3, tuple(ids))


def _count(where: str, row: Mapping[str, Any], name: str) -> int:
    try:
        value = int(row[name])
    except (KeyError, ValueError, TypeError):
        raise _wrong(where, name, row.get(name), "a whole number of tokens") from None
    if value < 1:
        raise _wrong(where, name, value, "at least 1 token")
    return value


def _wrong(where: str, name: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{where}: {name} = {value!r}, expected {expected}")

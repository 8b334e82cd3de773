"""Served rows as the tests need them, and a log folder's bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from core_engine.contracts import FeatureState
from featurestore.consistency.log_files import Bounds, LogFiles
from featurestore.consistency.served_rows import ServedRow, ServedView, to_frame
from featurestore.instants import to_us

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
WIDE = Bounds(file_bytes=1 << 20, total_bytes=1 << 24, age=timedelta(days=14))


def served_row(at: datetime = NOON, *values: Any) -> ServedRow:
    """A read of one view, whose features are f0, f1, ... with `values` (1 where there are none)."""
    values = values or (1,)
    at_us = to_us(at, "at")
    names = tuple(f"f{i}" for i in range(len(values)))
    states = tuple(FeatureState.NULL if value is None else FeatureState.PRESENT for value in values)
    return ServedRow(at_us, (ServedView("view", 1, "key", at_us - 1_000_000, names, states, values),))


def write(files: LogFiles, *rows: ServedRow) -> None:
    files.append([to_frame(row) for row in rows])

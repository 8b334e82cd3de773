"""Rows of an input file, a few at a time: JSON lines or Parquet, whatever their size.

A row that cannot be read is still a row, with its fault: it goes to the error file and the job goes on. A file that
cannot be read at all ends the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet

from batch.errors import InputFileError

PAGE_ROWS = 64
MAX_LINE_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One unit of work. `unit` is its position in the file from 0: the line, or the row; `fault`: it has no inputs."""

    unit: int
    inputs: Mapping[str, object] = field(default_factory=dict)
    fault: str | None = None


def read_rows(path: Path) -> Iterator[list[Row]]:
    """Pages of rows in the order of the file, each of at most `PAGE_ROWS`.

    Raises:
        InputFileError: an unknown format, or a file that cannot be read as what it says it is.
    """
    readers = {".jsonl": _read_lines, ".ndjson": _read_lines, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputFileError(f"input file {path}: its format is told by its name; known are {', '.join(readers)}")
    try:
        yield from reader(path)
    except (OSError, pa.ArrowException) as error:
        raise InputFileError(f"input file {path} cannot be read: {_one_line(error)}") from None


def _read_parquet(path: Path) -> Iterator[list[Row]]:
    unit = 0
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=PAGE_ROWS):
            rows = batch.to_pylist()
            yield [Row(unit + at, row) for at, row in enumerate(rows)]
            unit += len(rows)


def _read_lines(path: Path) -> Iterator[list[Row]]:
    page: list[Row] = []
    with path.open("rb") as file:
        for unit, line in enumerate(_lines(file)):
            if unit == 0:
                line = line.removeprefix(BOM)
            if line.strip():
                page.append(_row(unit, line))
            if len(page) == PAGE_ROWS:
                yield page
                page = []
    if page:
        yield page


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, each at most one byte longer than allowed: what is over that is skipped, not held."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        yield line


def _row(unit: int, line: bytes) -> Row:
    if len(line) > MAX_LINE_BYTES:
        return Row(unit, fault=f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        inputs = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Row(unit, fault=f"the line is no JSON: {_one_line(error)}")
    if not isinstance(inputs, dict):
        return Row(unit, fault=f"the line is no JSON object but {type(inputs).__name__}")
    return Row(unit, inputs)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

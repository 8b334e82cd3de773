"""The files of the served log: append only, one day and a bounded size each, the oldest deleted first, mode 0600.

They hold feature values and keys, so the folder is theirs alone (mode 0700). A file is named by the instant of its
first row and by its writer, and is never opened for writing again: what a killed writer left torn stays at its end.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final

from featurestore.consistency.served_rows import HEAD, LARGEST_BODY, Frame, ServedRow, from_body
from featurestore.instants import MICROSECOND, from_us

MAGIC: Final = b"HRSERVED\x01"  # the last byte is the format's version
SUFFIX: Final = ".served"
STAMP: Final = "%Y%m%dT%H%M%S.%f"
DAY_US: Final = timedelta(days=1) // MICROSECOND


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one file, of all files of a folder, and of the age of a file's first row."""

    file_bytes: int
    total_bytes: int
    age: timedelta


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a file could not be read on. `is_torn`: its end was never finished, by a killed writer or not yet."""

    path: Path
    offset: int
    what: str
    is_torn: bool = False


class LogFiles:
    """The writer of one process; `role` and pid are in the name of every file. For one thread."""

    def __init__(self, folder: Path, role: str, bounds: Bounds) -> None:
        self._folder = folder
        self._role = role
        self._bounds = bounds
        self._file: int | None = None
        self._path = folder
        self._size = self._day = self._part = 0

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames in their order; each UTC day has files of its own.

        Raises:
            OSError: the disk is full, or the folder cannot be written. Of the day where that happened nothing of this
                call was written; earlier days were.
        """
        for day, of_day in itertools.groupby(frames, lambda frame: frame.at_us // DAY_US):
            written = list(of_day)
            if self._file is None or day != self._day or self._size >= self._bounds.file_bytes:
                self._open(written[0].at_us)
            self._write(b"".join(frame.data for frame in written))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, first_us: int) -> None:
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        prune(self._folder, self._bounds, first_us)
        stamp = format(from_us(first_us), STAMP)
        self._path = self._folder / f"{stamp}-{self._role}-{os.getpid()}-{self._part:04d}{SUFFIX}"
        self._part += 1
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._day, self._size = first_us // DAY_US, 0
        try:
            self._write(MAGIC)
        except OSError:
            self.close()
            raise

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self._size)  # no half row for the next one to be glued to
            raise
        self._size += written


def prune(folder: Path, bounds: Bounds, now_us: int) -> None:
    """Delete files that are too old, then the oldest until one more full file fits. Another writer may do the same."""
    paths = log_paths(folder)
    total = bounds.file_bytes + sum(_size(path) for path in paths)
    oldest = format(from_us(now_us) - bounds.age, STAMP)
    for path in paths:
        if total <= bounds.total_bytes and path.name >= oldest:
            break
        total -= _size(path)
        path.unlink(missing_ok=True)


def log_paths(folder: Path) -> list[Path]:
    """The files of the log, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_log(folder: Path, begin_us: int, end_us: int, faults: list[Fault]) -> Iterator[ServedRow]:
    """The rows served in [begin_us, end_us), file by file, one in memory at a time; `faults` takes what cannot be read.

    Raises:
        OSError: a file cannot be opened, and was not deleted meanwhile.
    """
    first, last = (format(from_us(us), STAMP) for us in (begin_us // DAY_US * DAY_US, end_us))
    for path in log_paths(folder):
        if first <= path.name < last:
            yield from (row for row in _rows(path, faults) if begin_us <= row.at_us < end_us)


def _rows(path: Path, faults: list[Fault]) -> Iterator[ServedRow]:
    try:
        file = path.open("rb")
    except FileNotFoundError:  # pruned since it was listed
        return
    with file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            faults.append(Fault(path, 0, "not of a format that this release reads", MAGIC.startswith(magic)))
            return
        while head := file.read(HEAD.size):
            offset = file.tell() - len(head)
            try:
                row = _row(head, file)
            except EOFError:
                faults.append(Fault(path, offset, "its last row is unfinished", is_torn=True))
                return
            except ValueError as error:
                faults.append(Fault(path, offset, str(error)))
                return
            yield row


def _row(head: bytes, file: BinaryIO) -> ServedRow:
    """The row whose frame begins with `head`. Raises `EOFError` where it has no end, `ValueError` where it is none."""
    if len(head) < HEAD.size:
        raise EOFError
    num_bytes, checksum = HEAD.unpack(head)
    if num_bytes > LARGEST_BODY:
        raise ValueError(f"a row of {num_bytes} bytes: larger than any that is written")
    body = file.read(num_bytes)
    if len(body) < num_bytes:
        raise EOFError
    return from_body(body, checksum)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

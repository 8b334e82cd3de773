"""Append-only files of usage facts: one writer per process, JSON lines, read back by the ledger's loader.

A writer never raises into a request and never makes one wait for a disk: `write` appends to a bounded buffer, a thread
of its own puts whole lines into the file. A full disk keeps what it can in the buffer, counts what it cannot, and says
so once. A killed process loses at most `flush_s` of facts and leaves at most one torn last line.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from core_engine.costs.facts import Fact, SpoolHeader
from core_engine.metrics import Metrics

log = structlog.get_logger(__name__)

_LINES: msgspec.json.Decoder[SpoolHeader | Fact] = msgspec.json.Decoder(SpoolHeader | Fact)


class Spool:
    """The writer of this process. `role` (door, engine) and pid are in the name of every file.

    Flushes every `flush_s`, earlier above `flush_bytes`, and at `close`; starts a new part above `max_file_bytes`.
    """

    def __init__(
        self,
        directory: Path,
        role: str,
        metrics: Metrics,
        *,
        flush_s: float = 0.25,
        flush_bytes: int = 64 << 10,
        max_file_bytes: int = 64 << 20,
        max_buffer_bytes: int = 16 << 20,
    ) -> None:
        self._directory = directory
        self._role = role
        self._metrics = metrics
        self._flush_s = flush_s
        self._flush_bytes = flush_bytes
        self._max_file_bytes = max_file_bytes
        self._max_buffer_bytes = max_buffer_bytes
        self._started_at = datetime.now(UTC)
        self._part = 0
        self._file: int | None = None
        self._size = 0
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._lock = threading.Lock()  # guards the buffer
        self._file_lock = threading.Lock()  # guards the file; taken before the buffer's
        self._wake = threading.Event()
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name=f"spool-{role}", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The part being written."""
        started = f"{self._started_at:%Y%m%dT%H%M%S%f}"
        return self._directory / f"{self._role}-{os.getpid()}-{started}-{self._part:04d}.jsonl"

    def write(self, fact: Fact) -> None:
        """Take a fact. Never raises and never blocks on a disk; a fact that finds no room is counted as lost."""
        line = msgspec.json.encode(fact) + b"\n"
        with self._lock:
            if self._closed or self._buffered_bytes + len(line) > self._max_buffer_bytes:
                self._metrics.spool_lost_facts.inc()
                return
            self._buffer.append(line)
            self._buffered_bytes += len(line)
            is_full = self._buffered_bytes >= self._flush_bytes
        if is_full:
            self._wake.set()

    def flush(self) -> None:
        """Put everything taken so far into the file, in this thread. Never raises."""
        with self._file_lock:
            with self._lock:
                lines, self._buffer, self._buffered_bytes = self._buffer, [], 0
            if not lines:
                return
            try:
                self._append(b"".join(lines))
            except OSError as error:
                self._keep(lines, error)
            else:
                self._failing = False

    def close(self) -> None:
        """Flush and close the file. What cannot be written now is counted as lost."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._file_lock, self._lock:
            if self._buffer:
                self._metrics.spool_lost_facts.inc(len(self._buffer))
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self.flush()

    def _append(self, data: bytes) -> None:
        """Write all of `data` or, on an error, none of it."""
        if self._file is not None and self._size >= self._max_file_bytes:
            os.close(self._file)
            self._file, self._part = None, self._part + 1
        if self._file is None:
            self._open()
        assert self._file is not None
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self._size)  # no half line for the next batch to be glued to
            raise
        self._size += written

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        header = SpoolHeader(role=self._role, pid=os.getpid(), started_at=self._started_at, part=self._part)
        line = msgspec.json.encode(header) + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.ftruncate(file, 0)
            os.write(file, line)
        except OSError:
            os.close(file)
            raise
        self._file, self._size = file, len(line)

    def _keep(self, lines: list[bytes], error: OSError) -> None:
        """Put `lines` back in front of the buffer for the next flush; count the failure, log the first of a row."""
        self._metrics.spool_write_failures.inc()
        if not self._failing:
            log.error("spool_write_failed", path=str(self.path), error=str(error), kept_facts=len(lines))
        self._failing = True
        with self._lock:
            self._buffer = lines + self._buffer
            self._buffered_bytes += sum(map(len, lines))


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no fact. `is_torn`: it is the last one and was never finished, which a killed writer leaves."""

    number: int
    is_torn: bool
    fault: str


@dataclass(frozen=True, slots=True)
class SpoolContents:
    header: SpoolHeader | None
    facts: tuple[Fact, ...]
    bad_lines: tuple[BadLine, ...]

    @property
    def torn(self) -> BadLine | None:
        return next((line for line in self.bad_lines if line.is_torn), None)


def decode_line(line: bytes) -> SpoolHeader | Fact:
    """What one line of a spool says.

    Raises:
        ValueError: the line is no fact that this release knows.
    """
    try:
        return _LINES.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def read_spool(path: Path) -> SpoolContents:
    """Every fact of one file in the order written. Lines that cannot be read are reported, never dropped in silence.

    Raises:
        OSError: the file cannot be opened.
    """
    header: SpoolHeader | None = None
    facts: list[Fact] = []
    bad: list[BadLine] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                item = decode_line(line)
            except ValueError as error:
                bad.append(BadLine(number, not line.endswith(b"\n"), str(error)))
                continue
            if isinstance(item, SpoolHeader):
                header = item
            else:
                facts.append(item)
    return SpoolContents(header, tuple(facts), tuple(bad))

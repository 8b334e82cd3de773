"""The served log's way from a reply to the disk: a bounded queue and a thread, so that no reply waits or fails for it.

A reply hands over what to log as a function; making the row, encoding it and writing it happen here, in batches. What
finds no room, has a value of no feature type, or meets a full disk is counted, and the first of a series is logged.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import structlog

from core_engine.errors import HeadraceError
from core_engine.metrics import Metrics
from featurestore.consistency.served_rows import Frame, ServedRow, to_frame

log = structlog.get_logger(__name__)

MakeRow: TypeAlias = Callable[[], ServedRow]


class Sink(Protocol):
    """Where frames go: `LogFiles`."""

    def append(self, frames: Sequence[Frame]) -> None: ...

    def close(self) -> None: ...


class ServedLog:
    """Takes the sampled rows of one process. At most `max_queued` wait; up to `max_batch` are written at once."""

    def __init__(self, sink: Sink, metrics: Metrics, *, max_queued: int = 1024, max_batch: int = 256) -> None:
        self._sink = sink
        self._rows = metrics.served_log_rows
        self._max_batch = max_batch
        self._queue: queue.Queue[MakeRow | None] = queue.Queue(max_queued)  # None: the end
        self._closed = self._failing = False
        self._thread = threading.Thread(target=self._run, name="served-log", daemon=True)
        self._thread.start()

    def write(self, make_row: MakeRow) -> None:
        """Take a row to be made and logged. Never raises, never waits."""
        try:
            if self._closed:
                raise queue.Full
            self._queue.put_nowait(make_row)
        except queue.Full:
            self._rows.labels("dropped").inc()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._sink.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [self._queue.get()]
            while len(batch) < self._max_batch and not self._queue.empty():
                batch.append(self._queue.get())
            is_open = None not in batch
            self._write([frame for make_row in batch if make_row is not None and (frame := self._frame(make_row))])

    def _frame(self, make_row: MakeRow) -> Frame | None:
        try:
            return to_frame(make_row())
        except (HeadraceError, TypeError, ValueError, OverflowError) as error:
            self._failed(1, error)
            return None

    def _write(self, frames: Sequence[Frame]) -> None:
        if not frames:
            return
        try:
            self._sink.append(frames)
        except OSError as error:
            self._failed(len(frames), error)
        else:
            self._rows.labels("written").inc(len(frames))
            self._failing = False

    def _failed(self, num_rows: int, error: Exception) -> None:
        self._rows.labels("failed").inc(num_rows)
        if not self._failing:
            log.error("served_log_failed", error=str(error), rows=num_rows)
        self._failing = True

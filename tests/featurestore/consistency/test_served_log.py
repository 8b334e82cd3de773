"""The served log never makes a caller wait or fail: what it cannot take is counted, and the rest is written."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from structlog.testing import capture_logs

from core_engine.metrics import Metrics
from featurestore.consistency.log_files import Fault, LogFiles, read_log
from featurestore.consistency.served_log import ServedLog
from featurestore.consistency.served_rows import Frame, ServedRow
from tests.featurestore.consistency.rows import NOON, WIDE, served_row
from tests.featurestore.consistency.test_log_files import EVER


class StalledSink:
    """A disk that does not answer until it is released."""

    def __init__(self) -> None:
        self.is_writing = threading.Event()
        self.released = threading.Event()
        self.written: list[Frame] = []

    def append(self, frames: Sequence[Frame]) -> None:
        self.is_writing.set()
        self.released.wait()
        self.written += frames

    def close(self) -> None:
        self.released.set()


def counted(metrics: Metrics) -> dict[str, float]:
    (family,) = metrics.served_log_rows.collect()
    return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


def test_what_was_taken_is_in_the_file_after_close_however_many_threads_wrote(tmp_path: Path) -> None:
    metrics = Metrics()
    log = ServedLog(LogFiles(tmp_path, "door", WIDE), metrics, max_queued=10_000)

    def serve(first: int) -> None:
        for i in range(first, first + 100):
            log.write(lambda i=i: served_row(NOON, i))  # type: ignore[misc]

    threads = [threading.Thread(target=serve, args=(100 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    values = sorted(row.views[0].values[0] for row in read_log(tmp_path, *EVER, []))
    assert values == list(range(800))
    assert counted(metrics) == {"written": 800}


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from core_engine.metrics import Metrics
from featurestore.consistency.log_files import LogFiles
from featurestore.consistency.served_log import ServedLog
from tests.featurestore.consistency.rows import NOON, WIDE, served_row

log = ServedLog(LogFiles(Path(sys.argv[1]), "door", WIDE), Metrics(), max_queued=100)
i = 0
while True:
    log.write(lambda i=i: served_row(NOON, i, "x" * (i % 5000)))
    i += 1
    if i == 20_000:
        print("busy", flush=True)
"""


def test_a_process_that_is_killed_leaves_whole_rows_in_order_and_the_next_one_goes_on(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"busy\n"
    process.kill()
    process.communicate()
    log = ServedLog(LogFiles(tmp_path, "door", WIDE), Metrics())
    log.write(lambda: served_row(NOON, -1))
    log.close()
    faults: list[Fault] = []
    values = [row.views[0].values[0] for row in read_log(tmp_path, *EVER, faults)]
    assert sorted(values) == [-1, *(value for value in values if value != -1)]
    assert len(values) > 100
    assert [fault.is_torn for fault in faults] in ([], [True])


def test_a_full_queue_drops_and_counts_and_the_caller_goes_on() -> None:
    metrics, sink = Metrics(), StalledSink()
    log = ServedLog(sink, metrics, max_queued=3)
    log.write(served_row)
    sink.is_writing.wait()  # the first row is out of the queue
    for _ in range(10):
        log.write(served_row)
    assert counted(metrics) == {"dropped": 7}
    sink.released.set()
    log.close()
    assert len(sink.written) == 4
    assert counted(metrics) == {"dropped": 7, "written": 4}


def test_a_row_after_close_is_dropped_and_counted(tmp_path: Path) -> None:
    metrics = Metrics()
    log = ServedLog(LogFiles(tmp_path, "door", WIDE), metrics)
    log.close()
    log.write(served_row)
    assert counted(metrics) == {"dropped": 1}
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    def of_no_feature_type() -> ServedRow:
        return served_row(NOON, object())

    metrics = Metrics()
    with capture_logs() as logs:
        log = ServedLog(LogFiles(tmp_path, "door", WIDE), metrics)
        for make_row in (served_row, of_no_feature_type, served_row):
            log.write(make_row)
        log.close()
    assert counted(metrics) == {"written": 2, "failed": 1}
    assert len(list(read_log(tmp_path, *EVER, []))) == 2
    assert [line["event"] for line in logs] == ["served_log_failed"]


def test_a_folder_that_cannot_be_made_is_logged_once_and_every_row_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    metrics = Metrics()
    with capture_logs() as logs:
        log = ServedLog(LogFiles(tmp_path / "file" / "served", "door", WIDE), metrics, max_batch=1)
        for _ in range(5):
            log.write(served_row)
        log.close()
    assert counted(metrics) == {"failed": 5}
    assert [line["event"] for line in logs] == ["served_log_failed"]

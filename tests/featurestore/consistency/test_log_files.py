"""The log's files: what was written is read, whatever the writer's end; their number, size and modes are bounded."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.consistency.log_files import MAGIC, Fault, LogFiles, log_paths, read_log
from featurestore.consistency.served_rows import ServedRow, to_frame
from featurestore.instants import to_us
from tests.featurestore.consistency.rows import NOON, WIDE, served_row, write
from tests.featurestore.rows import PROPERTY

EVER = (0, to_us(datetime(2100, 1, 1, tzinfo=UTC), "end"))
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def rows_of(folder: Path, faults: list[Fault] | None = None) -> list[ServedRow]:
    found: list[Fault] = [] if faults is None else faults
    rows = list(read_log(folder, *EVER, found))
    assert faults is not None or found == []
    return rows


def test_rows_come_back_in_order_over_files_of_a_bounded_size(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, "door", replace(WIDE, file_bytes=1000))
    rows = [served_row(NOON + i * SECOND, i, "x" * 100) for i in range(50)]
    for row in rows:
        write(files, row)
    files.close()
    assert rows_of(tmp_path) == rows
    sizes = [path.stat().st_size for path in log_paths(tmp_path)]
    assert len(sizes) > 3
    assert max(sizes) <= 1000 + len(to_frame(rows[0]).data)


def test_each_utc_day_has_files_of_its_own_also_where_clocks_change(tmp_path: Path) -> None:
    """On 2026-03-08 New York's day has 23 hours and on 2026-11-01 25; a UTC day has 24."""
    files = LogFiles(tmp_path, "door", replace(WIDE, age=365 * DAY))
    midnights = [datetime(2026, month, day, tzinfo=UTC) for month, day in ((3, 8), (3, 9), (11, 1), (11, 2))]
    rows = [served_row(at + late) for at in midnights for late in (-SECOND / 1e6, timedelta(), 23 * SECOND * 3600)]
    write(files, *rows)
    files.close()
    assert rows_of(tmp_path) == rows
    names = [path.name[:8] for path in log_paths(tmp_path)]
    assert names == ["20260307", "20260308", "20260309", "20261031", "20261101", "20261102"]
    one_day = (to_us(midnights[1], "from"), to_us(midnights[1] + DAY, "to"))
    assert list(read_log(tmp_path, *one_day, [])) == [rows[4], rows[5]]


def test_only_their_owner_can_read_what_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    files = LogFiles(folder, "door", WIDE)
    write(files, served_row())
    files.close()
    (path,) = log_paths(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_oldest_files_go_when_the_folder_is_full(tmp_path: Path) -> None:
    bounds = replace(WIDE, file_bytes=1000, total_bytes=5000)
    files = LogFiles(tmp_path, "door", bounds)
    rows = [served_row(NOON + i * SECOND, "x" * 100) for i in range(200)]
    for row in rows:
        write(files, row)
    files.close()
    kept = rows_of(tmp_path)
    assert kept == rows[-len(kept) :]
    frame = len(to_frame(rows[0]).data)
    assert 3000 < sum(path.stat().st_size for path in log_paths(tmp_path)) <= bounds.total_bytes + frame


def test_files_past_their_age_go_when_the_next_one_begins(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, "door", replace(WIDE, age=2 * DAY))
    rows = [served_row(NOON + i * DAY) for i in range(6)]
    for row in rows:
        write(files, row)
    files.close()
    assert rows_of(tmp_path) == rows[3:]


@PROPERTY
@given(st.data())
def test_a_file_cut_anywhere_gives_its_whole_rows_and_counts_its_tail(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    rows = [served_row(NOON + i * SECOND, i, "x" * i) for i in range(4)]
    files = LogFiles(folder, "door", WIDE)
    write(files, *rows)
    files.close()
    (path,) = log_paths(folder)
    ends = [len(MAGIC)]
    for row in rows:
        ends.append(ends[-1] + len(to_frame(row).data))
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(path, cut)
    faults: list[Fault] = []
    whole = sum(end <= cut for end in ends[1:])
    assert rows_of(folder, faults) == rows[:whole]
    assert [(fault.is_torn, fault.offset) for fault in faults] == (
        [] if cut in ends else [(True, 0 if cut < len(MAGIC) else ends[whole])]
    )


def test_a_writer_after_a_killed_one_goes_on_beside_the_torn_file(tmp_path: Path) -> None:
    first = LogFiles(tmp_path, "door", WIDE)
    write(first, served_row(), served_row(NOON + SECOND))
    first.close()
    (path,) = log_paths(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    second = LogFiles(tmp_path, "door", WIDE)
    write(second, served_row(NOON + 2 * SECOND))
    second.close()
    faults: list[Fault] = []
    assert rows_of(tmp_path, faults) == [served_row(), served_row(NOON + 2 * SECOND)]
    assert [fault.path for fault in faults] == [path]


def test_a_broken_row_ends_its_file_and_no_other(tmp_path: Path) -> None:
    for i in range(2):
        files = LogFiles(tmp_path, f"door{i}", WIDE)
        write(files, served_row(NOON + i * SECOND), served_row(NOON + i * SECOND, "x"))
        files.close()
    first = log_paths(tmp_path)[0]
    broken = bytearray(first.read_bytes())
    broken[-1] ^= 1
    first.write_bytes(broken)
    faults: list[Fault] = []
    assert len(rows_of(tmp_path, faults)) == 3
    assert [(fault.path, fault.is_torn) for fault in faults] == [(first, False)]


def test_a_file_of_another_format_is_named_and_left_out(tmp_path: Path) -> None:
    foreign = tmp_path / "20260101T000000.000000-door-1-0000.served"
    foreign.write_bytes(b"HRSERVED\x02 and what follows")
    faults: list[Fault] = []
    assert rows_of(tmp_path, faults) == []
    assert [(fault.path, fault.is_torn) for fault in faults] == [(foreign, False)]


@pytest.fixture
def largest_file() -> Iterator[int]:
    """The kernel refuses to let a file grow past this many bytes, after a partial write: as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        yield 2000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_fills_in_the_middle_of_a_row_leaves_no_half_row(tmp_path: Path, largest_file: int) -> None:
    files = LogFiles(tmp_path, "door", WIDE)
    write(files, served_row())
    with pytest.raises(OSError, match="large"):
        write(files, served_row(NOON, "x" * largest_file))
    write(files, served_row(NOON, "later"))
    files.close()
    assert rows_of(tmp_path) == [served_row(), served_row(NOON, "later")]

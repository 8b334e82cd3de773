"""Rows come in pages, whatever is wrong with some of them; a file that is no file of rows is refused."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch.errors import InputFileError
from batch.reader import MAX_LINE_BYTES, PAGE_ROWS, Row, read_rows


def rows_of(path: Path) -> list[Row]:
    return [row for page in read_rows(path) for row in page]


def test_lines_are_rows_and_their_number_is_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": "\xc3\xa9"}')
    assert rows_of(path) == [Row(0, {"a": 1}), Row(3, {"a": "é"})]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": 1', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "no JSON object but list"),
        (b"null", "no JSON object but NoneType"),
        (b'{"a": "' + b"x" * MAX_LINE_BYTES + b'"}', "longer than"),
    ],
)
def test_a_line_that_is_no_row_has_a_fault_and_the_next_ones_are_read(tmp_path: Path, line: bytes, fault: str) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    first, bad, last = rows_of(path)
    assert (first, last) == (Row(0, {"a": 1}), Row(2, {"a": 2}))
    assert bad.unit == 1
    assert bad.fault is not None
    assert fault in bad.fault
    assert "\n" not in bad.fault


@given(content=st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_bytes_are_a_crash(tmp_path: Path, content: bytes) -> None:
    lines, table = tmp_path / "any.jsonl", tmp_path / "any.parquet"
    lines.write_bytes(content)
    units = [row.unit for row in rows_of(lines)]
    assert units == sorted(set(units))
    table.write_bytes(content)
    with pytest.raises(InputFileError, match=r"any\.parquet"):
        rows_of(table)


@pytest.mark.parametrize("num_rows", [0, 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS])
def test_parquet_and_lines_give_the_same_rows_in_bounded_pages(tmp_path: Path, num_rows: int) -> None:
    given_rows = [{"name": f"n{at}", "x": at / 7, "n": at, "absent": None} for at in range(num_rows)]
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in given_rows))
    kinds: dict[str, pa.DataType] = {"name": pa.string(), "x": pa.float64(), "n": pa.int64(), "absent": pa.string()}
    pyarrow.parquet.write_table(pa.Table.from_pylist(given_rows, pa.schema(kinds)), table)
    assert rows_of(lines) == rows_of(table) == [Row(at, row) for at, row in enumerate(given_rows)]
    assert all(1 <= len(page) <= PAGE_ROWS for page in read_rows(table))


def test_instants_in_parquet_stay_aware(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    pyarrow.parquet.write_table(pa.table({"at": pa.array([at], pa.timestamp("us", tz="UTC"))}), path)
    (row,) = rows_of(path)
    assert row.inputs == {"at": at}


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    line = msgspec.json.encode({"name": "x" * 1000}) + b"\n"
    path.write_bytes(line * 5_000)
    tracemalloc.start()
    try:
        num_rows = sum(len(page) for page in read_rows(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_rows == 5_000
    assert peak < path.stat().st_size / 5


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.parquet", "rows.csv", "rows"])
def test_a_file_that_is_not_there_or_not_known_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with pytest.raises(InputFileError, match=name) as caught:
        rows_of(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_that_breaks_off_is_said_after_its_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"name": [f"{at:0100d}" for at in range(4 * PAGE_ROWS)]})
    pyarrow.parquet.write_table(table, path, row_group_size=PAGE_ROWS, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 9000] = b"\xff" * 9000
    path.write_bytes(content)
    pages = read_rows(path)
    assert len(next(pages)) == PAGE_ROWS
    with pytest.raises(InputFileError, match="cannot be read"):
        list(pages)

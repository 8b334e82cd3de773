"""What the comparison of joins stands on: its data, its own brute force, and how an answer is held to ours."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.features import join
from benchmarks.features.join import COLUMNS, YARDSTICK, Found, Size, check_ours, joined, measured, rows_wrong
from benchmarks.features.join_data import ENTITIES, SPINE, history_path, write_data

SIZE = Size(num_events=2_000, num_rows=60_000, joins=("ours", YARDSTICK), turns=1, repeats=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("join")
    write_data(folder, SIZE.num_events, SIZE.num_rows)
    return folder


def test_a_tenth_of_a_late_history_is_late_and_nothing_else_differs(folder: Path) -> None:
    for view in ENTITIES:
        late, on_time = (pq.read_table(history_path(folder, view, history)) for history in ("late", "on_time"))
        assert late.drop_columns("created_time").equals(on_time.drop_columns("created_time"))
        assert on_time["event_time"].equals(on_time["created_time"])
        lag = pc.subtract(late["created_time"].cast(pa.int64()), late["event_time"].cast(pa.int64()))
        assert pc.min(lag).as_py() == 0
        assert 0.09 < pc.mean(pc.greater(lag, 0).cast(pa.int8())).as_py() < 0.11


def test_one_event_in_a_hundred_comes_twice(folder: Path) -> None:
    spine = pq.read_table(folder / SPINE).to_pylist()
    assert len(spine) == SIZE.num_events
    assert sum(one == other for one, other in pairwise(spine)) == SIZE.num_events // 100


def test_ours_is_right_and_a_join_on_one_clock_is_not(folder: Path) -> None:
    check_ours(folder, SIZE)
    ours, plain = measured(folder, SIZE)
    assert (ours["join"], ours["rows_wrong"], plain["over_duckdb"]) == ("ours", 0, 1.0)
    assert 0 < plain["rows_wrong"] < SIZE.num_events
    assert ours["peak_rss_gb"] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("history", ["late", "on_time"])
def test_a_wrong_join_ends_the_comparison(folder: Path, monkeypatch: pytest.MonkeyPatch, history: str) -> None:
    def spoiled(where: Path, size: Size, name: str, of: str) -> Found:
        found = joined(where, size, name, of)
        if (name, of) != ("ours", history):
            return found
        column = found.answer[COLUMNS[0]].to_numpy() + 1.0
        return replace(found, answer=found.answer.set_column(0, COLUMNS[0], [column]))

    monkeypatch.setattr(join, "joined", spoiled)
    with pytest.raises(SystemExit, match="the join is wrong"):
        check_ours(folder, SIZE)


def test_an_answer_is_held_to_ours_event_by_event() -> None:
    values = {name: pa.array([1.0, 2.0, None]) for name in COLUMNS}
    states = {f"{name}__state": pa.array(["present", "stale", "missing"]) for name in COLUMNS}
    expected = pa.table(values | states)
    changed = values | {COLUMNS[3]: pa.array([9.0, 2.0, np.nan])}
    assert rows_wrong(pa.table(values), expected, within_ttl=False) == 0
    assert rows_wrong(pa.table(changed), expected, within_ttl=False) == 1
    assert rows_wrong(pa.table(changed), expected, within_ttl=True) == 2
    assert rows_wrong(pa.table(values).slice(1), expected, within_ttl=False) == 3

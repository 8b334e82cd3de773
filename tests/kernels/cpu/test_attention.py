"""The paged cache and attention over it, in C++ under sanitizers, on every level that this CPU runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu.isa import Level
from tests.kernels.cpu.native import RUNNABLE, run_native

pytestmark = pytest.mark.timeout(660)  # under sanitizers: 15 s of CPU a test, minutes beside other work


@pytest.mark.parametrize("kv", ["0", "1"], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("level", RUNNABLE)
def test_attention_equals_plain_loops_and_a_rows_bits_do_not_depend_on_the_cut(
    level: Level, kv: str, tmp_path: Path
) -> None:
    run_native("attention.cpp", tmp_path, kv, level=level)


@pytest.mark.parametrize("level", RUNNABLE)
def test_written_heads_lie_where_the_layout_says_and_no_other_byte_changes(level: Level, tmp_path: Path) -> None:
    run_native("kv.cpp", tmp_path, level=level)


def test_planned_items_cover_every_row_once_longest_first_and_keep_all_threads_busy(tmp_path: Path) -> None:
    run_native("attention_work.cpp", tmp_path)

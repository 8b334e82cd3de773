"""Products of packed weights and prepared rows, in C++ under sanitizers, on every level that this CPU runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu.isa import Level
from tests.kernels.cpu.native import RUNNABLE, run_native

pytestmark = pytest.mark.timeout(660)  # under sanitizers: 15 s of CPU a test, minutes beside other work


@pytest.mark.parametrize("level", RUNNABLE)
def test_rows_are_quantised_rounded_padded_and_normed_as_products_take_them(level: Level, tmp_path: Path) -> None:
    run_native("quantise.cpp", tmp_path, level=level)


@pytest.mark.parametrize("level", RUNNABLE)
def test_products_equal_the_plain_loop_and_a_rows_bits_depend_on_no_other_row(level: Level, tmp_path: Path) -> None:
    run_native("linear.cpp", tmp_path, level=level)

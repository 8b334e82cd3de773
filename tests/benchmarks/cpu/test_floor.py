from __future__ import annotations

import pytest

from benchmarks.cpu.context import fit
from benchmarks.cpu.driving import StepSeconds
from benchmarks.cpu.floor import Limits, StepSize


def test_the_chunks_of_a_prompt_attend_as_often_as_the_whole_and_only_the_last_has_an_output() -> None:
    chunks, [whole] = StepSize.prefill(1100, 512), StepSize.prefill(1100, 1100)
    assert [chunk.rows for chunk in chunks] == [512, 512, 76]
    assert sum(chunk.attended for chunk in chunks) == whole.attended == 1100 * 1101 // 2
    assert [chunk.outputs for chunk in chunks] == [0, 0, 1]


def test_few_rows_are_bound_by_bytes_and_many_by_operations() -> None:
    limits = Limits(read_bytes_per_s=1e9, product_ops_per_s=1e12, attention_ops_per_s=1e11)
    assert limits.product_s(num_bytes=2e6, operations=1e6) == 2e-3
    assert limits.product_s(num_bytes=2e6, operations=5e9) == 5e-3
    assert limits.attention_s(num_bytes=2e6, operations=5e9) == 5e-2


def test_python_is_what_neither_the_kernel_nor_the_sampler_took() -> None:
    step = StepSeconds(step=10.0, sampler=1.0, parts={"products": 5.0, "head": 2.5})
    assert step.python == 1.5
    assert StepSeconds.total([step, step]).python == 3.0


@pytest.mark.parametrize("terms", [(0.01, 2e-4, 5e-8), (0.0, 2e-4, 1e-7), (0.01, 2e-4, 0.0)])
def test_a_quadratic_is_found_again(terms: tuple[float, float, float]) -> None:
    a, b, c = terms
    lengths = [128, 512, 1024, 4096, 8000]
    found = fit(lengths, [a + b * n + c * n * n for n in lengths])
    assert (found.a, found.b, found.c) == pytest.approx(terms, rel=1e-6, abs=1e-12)


def test_no_term_of_a_fit_is_negative() -> None:
    lengths = [128, 512, 1024, 4096]
    found = fit(lengths, [1e-4 * n - 0.005 for n in lengths])
    assert min(found.a, found.b, found.c) >= 0
    assert found.b > 0

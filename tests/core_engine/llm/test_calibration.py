"""Measuring steps of a tiny engine: what is measured, what is fitted, what is written."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from core_engine.llm.calibration import Errors, Sample, Span, calibrate, errors, measure, random_plan, store
from core_engine.llm.step_time import StepShape, StepTime, chunk_shape, load_calibration
from tests.core_engine.llm.tiny import CONFIG, tiny_engine

SPAN = Span(max_rows=6, max_chunk=20, max_context=40)
TRUTH = StepTime(a=0.03, b=7e-4, c=9e-4, d=7e-6, e=8e-7)


def samples(num: int, rng: random.Random, noise: float = 0.0) -> list[Sample]:
    made = []
    for _ in range(num):
        rows = rng.choice([0, 1, 4, 16])
        shape = StepShape(decode_rows=rows, decode_context_tokens=rows * rng.randint(10, 900), sequences=rows)
        if not rows or rng.random() < 0.5:
            shape += chunk_shape(rng.choice([0, 300]), rng.randint(1, 500), is_decode=False)
        passes = [TRUTH.predict(shape) * (1 + noise * rng.random()) for _ in range(4)]
        made.append(Sample(shape, passes))
    return made


def test_random_steps_cover_what_a_scheduler_makes_and_stay_within_the_span() -> None:
    runner, rng = tiny_engine().runner, random.Random(0)
    plans = [random_plan(runner, rng, SPAN) for _ in range(400)]
    shapes = [plan.shape for plan in plans]
    assert {shape.decode_rows for shape in shapes} == {0, 1, 2, 4, 6}
    assert {1, SPAN.max_chunk} <= {shape.prefill_tokens for shape in shapes}
    assert any(shape.decode_rows and shape.prefill_tokens for shape in shapes)
    assert max(shape.prefill_tokens for shape in shapes) == SPAN.max_chunk
    for plan in plans:
        for item in plan.scheduled:
            sequence = item.sequence
            assert sequence.num_computed_tokens <= SPAN.max_context
            assert len(sequence.block_table) * runner.cache.block_size >= sequence.num_tokens
            assert sequence.is_decoding == (item in plan.decodes)
        assert all(item.samples for item in plan.decodes)
    assert {item.samples for plan in plans for item in plan.chunks} == {True, False}


def test_every_step_is_run_in_every_pass_by_the_runner_itself() -> None:
    engine = tiny_engine()
    measured = measure(engine.runner, random.Random(1), 12, SPAN, passes=3)
    assert [len(sample.seconds) for sample in measured] == [3] * 12
    assert all(0 < sample.fastest_s == min(sample.seconds) for sample in measured)
    assert engine.runner.cache.tensor.abs().sum() > 0
    assert SPAN.max_context + SPAN.max_chunk < CONFIG.max_positions


def test_the_same_seed_makes_the_same_steps() -> None:
    runner = tiny_engine().runner
    shapes = [[random_plan(runner, random.Random(5), SPAN).shape for _ in range(3)] for _ in range(2)]
    assert shapes[0] == shapes[1]


def test_coefficients_come_from_the_samples_alone() -> None:
    assert calibrate(samples(60, random.Random(2))).coefficients == pytest.approx(TRUTH.coefficients, rel=1e-3)
    slower = calibrate(samples(60, random.Random(2), noise=0.5))
    assert errors(slower, samples(60, random.Random(3))).median < 0.15


def test_errors_are_relative_and_sorted() -> None:
    found = Errors.of([1.1, 2.0, 3.0, 0.5], [1.0, 2.0, 2.0, 1.0])
    assert found.median == pytest.approx(0.3)
    assert found.p95 == 0.5
    exact = errors(TRUTH, samples(20, random.Random(4)))
    assert exact.p95 == pytest.approx(0)


def test_what_is_stored_is_what_an_engine_loads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "here.json"
    store(path, TRUTH, Errors(0.03, 0.1), dtype="bfloat16", num_threads=2, machine="this one")
    assert load_calibration("bfloat16", path).coefficients == TRUTH.coefficients
    stored = json.loads(path.read_text())
    assert (stored["machine"], stored["num_threads"], stored["p95_error"]) == ("this one", 2, 0.1)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        store(tmp_path / "file" / "here.json", TRUTH, Errors(0, 0), dtype="bfloat16")

"""The step-time formula, its shares, and the stored calibrations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.llm.step_time import (
    CALIBRATIONS,
    NOTHING,
    PRESETS,
    StepShape,
    StepTime,
    chunk_shape,
    load_calibration,
)

MODEL = StepTime(a=0.01, b=0.001, c=0.002, d=1e-6, e=1e-8)
parts = st.lists(
    st.builds(
        chunk_shape,
        st.integers(0, 5000),
        st.integers(1, 512),
        is_decode=st.booleans(),
    ),
    min_size=1,
    max_size=40,
)
coefficient = st.one_of(st.just(0.0), st.floats(1e-12, 1.0))
models = st.builds(StepTime, coefficient, coefficient, coefficient, coefficient, coefficient)
contexts = st.integers(0, 100_000)


def test_the_formula_term_by_term() -> None:
    decode = chunk_shape(99, 1, is_decode=True)
    prefill = chunk_shape(10, 3, is_decode=False)
    assert decode == StepShape(decode_rows=1, decode_context_tokens=100, sequences=1)
    assert prefill == StepShape(prefill_tokens=3, attended_pairs=11 + 12 + 13, sequences=1)
    assert MODEL.predict(decode + prefill) == pytest.approx(0.01 + 0.002 + 100e-6 + 0.003 + 36e-8)
    assert MODEL.predict(NOTHING) == 0.0


@given(context=st.integers(0, 500), first=st.integers(1, 200), second=st.integers(1, 200))
def test_a_prompt_attends_to_the_same_pairs_however_it_is_cut(context: int, first: int, second: int) -> None:
    whole = chunk_shape(context, first + second, is_decode=False)
    cut = chunk_shape(context, first, is_decode=False) + chunk_shape(context + first, second, is_decode=False)
    assert whole.attended_pairs == cut.attended_pairs
    assert whole.prefill_tokens == cut.prefill_tokens


@given(parts=parts, step_s=st.floats(1e-6, 10))
def test_shares_add_up_to_the_step(parts: list[StepShape], step_s: float) -> None:
    shares = MODEL.shares(parts, step_s)
    assert sum(shares) == pytest.approx(step_s)
    assert all(share > 0 for share in shares)


@given(parts=parts)
def test_a_bigger_step_is_never_predicted_to_be_shorter(parts: list[StepShape]) -> None:
    total = NOTHING
    for part in parts:
        assert MODEL.predict(total + part) >= MODEL.predict(total)
        total = total + part


@given(parts=parts, step_s=st.floats(1e-6, 10))
def test_shares_of_costs_are_the_shares_of_their_shapes(parts: list[StepShape], step_s: float) -> None:
    costs = [MODEL.variable_cost(part) for part in parts]
    assert MODEL.shares_of(costs, step_s) == MODEL.shares(parts, step_s)


@given(model=models, context=contexts, num_tokens=st.integers(1, 4096))
def test_costs_are_what_a_sequence_adds_to_a_step(model: StepTime, context: int, num_tokens: int) -> None:
    prefill, decode = chunk_shape(context, num_tokens, is_decode=False), chunk_shape(context, 1, is_decode=True)
    assert model.chunk_cost(context, num_tokens) == pytest.approx(model.variable_cost(prefill))
    assert model.decode_cost(context + 1) == pytest.approx(model.variable_cost(decode))
    assert model.predict(prefill + decode) == pytest.approx(
        model.a + model.chunk_cost(context, num_tokens) + model.decode_cost(context + 1)
    )


@given(model=models, context=contexts, room_s=st.floats(-1, 100), at_most=st.integers(-1, 600))
def test_the_largest_chunk_is_the_one_that_trying_all_finds(
    model: StepTime, context: int, room_s: float, at_most: int
) -> None:
    fitting = [n for n in range(1, at_most + 1) if model.chunk_cost(context, n) <= room_s]
    assert model.largest_chunk(context, room_s, at_most) == max(fitting, default=0)


@given(model=models, context=contexts, wanted=st.integers(1, 200_000))
def test_a_chunk_that_fits_exactly_is_found_at_any_size(model: StepTime, context: int, wanted: int) -> None:
    room_s = model.chunk_cost(context, wanted)
    found = model.largest_chunk(context, room_s, 400_000)
    assert found >= wanted
    assert model.chunk_cost(context, found) <= room_s
    assert found == 400_000 or model.chunk_cost(context, found + 1) > room_s


def test_without_a_cap_all_that_is_wanted_fits() -> None:
    assert MODEL.largest_chunk(0, math.inf, 77) == 77
    assert MODEL.largest_chunk(0, math.nan, 77) == 0


@given(model=models, num_tokens=st.integers(1, 5000), most=st.integers(1, 700), context=st.integers(0, 5000))
def test_an_unloaded_prefill_is_the_sum_of_its_steps(model: StepTime, num_tokens: int, most: int, context: int) -> None:
    total_s, done = 0.0, 0
    while done < num_tokens:
        size = min(most, num_tokens - done)
        total_s += model.predict(chunk_shape(context + done, size, is_decode=False))
        done += size
    assert model.unloaded_prefill_s(num_tokens, most, context) == pytest.approx(total_s)


def test_an_unloaded_decode_is_a_step_of_one_row() -> None:
    assert MODEL.unloaded_decode_s(1) == MODEL.shortest()
    assert MODEL.unloaded_decode_s(500) == pytest.approx(MODEL.predict(chunk_shape(499, 1, is_decode=True)))


def test_a_scaled_model_takes_as_many_times_as_long() -> None:
    shape = chunk_shape(100, 50, is_decode=False) + chunk_shape(9, 1, is_decode=True)
    assert MODEL.scaled(3).predict(shape) == pytest.approx(3 * MODEL.predict(shape))


def test_shares_are_equal_where_nothing_weighs() -> None:
    nothing = StepTime(a=0, b=0, c=0, d=0, e=0)
    assert nothing.shares([chunk_shape(0, 1, is_decode=True)] * 4, 1.0) == (0.25,) * 4


@pytest.mark.parametrize("path", sorted(CALIBRATIONS.glob("*.json")), ids=lambda p: p.name)
def test_every_committed_calibration_loads_and_says_where_it_was_made(path: Path) -> None:
    stored = json.loads(path.read_bytes())
    assert load_calibration(stored["dtype"], path).shortest() > 0
    assert stored["machine"]
    assert stored["num_threads"] >= 1


def test_the_nearest_thread_count_is_taken() -> None:
    assert load_calibration("bfloat16", num_threads=1).source.endswith(".json")


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.json")), ids=lambda p: p.name)
def test_a_preset_says_that_it_was_not_measured_and_is_never_chosen(path: Path) -> None:
    stored = json.loads(path.read_bytes())
    assert "not measured" in stored["machine"]
    assert stored["source"]
    assert load_calibration(stored["dtype"], path).shortest() > 0
    for num_threads in (1, stored["num_threads"], 1000):
        assert load_calibration(stored["dtype"], num_threads=num_threads).source != path.name


def test_there_is_a_preset() -> None:
    assert [path.name for path in PRESETS.glob("*.json")] == ["h200_like_bfloat16_8b.json"]


@pytest.mark.parametrize(
    ("content", "says"),
    [("{}", "numbers a to e"), ("not json", "numbers a to e"), ('{"a":-1,"b":0,"c":0,"d":0,"e":0}', "a = -1")],
)
def test_a_broken_calibration_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=says):
        load_calibration("bfloat16", path)


def test_an_absent_calibration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_calibration("bfloat16", tmp_path / "none.json")


def test_a_folder_instead_of_a_calibration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_calibration("bfloat16", tmp_path)

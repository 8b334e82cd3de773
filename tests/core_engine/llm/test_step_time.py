"""The step-time formula, its shares, and the stored calibrations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.llm.step_time import CALIBRATIONS, NOTHING, StepShape, StepTime, chunk_shape, load_calibration

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

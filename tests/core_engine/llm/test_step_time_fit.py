"""The online fit: exact where the data speak, the calibration where they do not, unmoved by a noisy neighbour."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_engine.llm.step_time import NOTHING, StepShape, StepTime, chunk_shape
from core_engine.llm.step_time_fit import REFIT_EVERY, WINDOW, StepTimeFit, fit_shapes, nonnegative

CALIBRATION = StepTime(a=0.03, b=7e-4, c=9e-4, d=7e-6, e=8e-7)
factors = st.floats(0.2, 5.0)
truths = st.builds(
    lambda a, b, c, d, e: StepTime(a * 0.03, b * 7e-4, c * 9e-4, d * 7e-6, e * 8e-7),
    *[factors] * 5,
)


def varied(rng: random.Random) -> StepShape:
    """Decode rows, a prefill chunk, or both, as a busy engine's steps have them."""
    num_rows = rng.choice([0, 1, 3, 8, 28])
    rows = StepShape(decode_rows=num_rows, decode_context_tokens=num_rows * rng.randint(1, 2000), sequences=num_rows)
    if num_rows and rng.random() < 0.5:
        return rows
    return rows + chunk_shape(rng.choice([0, rng.randint(1, 2000)]), rng.randint(1, 512), is_decode=False)


def alone(context: int) -> StepShape:
    return chunk_shape(context, 1, is_decode=True)


@given(truth=truths, seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_known_coefficients_are_recovered_from_varied_steps_without_noise(truth: StepTime, seed: int) -> None:
    rng, fit = random.Random(seed), StepTimeFit(CALIBRATION)
    for _ in range(WINDOW):
        shape = varied(rng)
        fit.observe(shape, truth.predict(shape))
    assert fit.current.coefficients == pytest.approx(truth.coefficients, rel=1e-3)


def test_a_coefficient_that_the_calibration_has_at_zero_is_found() -> None:
    rng, fit = random.Random(2), StepTimeFit(StepTime(0.03, 7e-4, 9e-4, 0.0, 8e-7))
    for _ in range(WINDOW):
        shape = varied(rng)
        fit.observe(shape, CALIBRATION.predict(shape))
    assert fit.current.coefficients == pytest.approx(CALIBRATION.coefficients, rel=1e-3)


@given(slower=st.floats(0.1, 10.0), seed=st.integers(0, 1000), first=st.integers(1, 1000))
@settings(max_examples=50)
def test_decode_alone_leaves_the_calibrations_proportions(slower: float, seed: int, first: int) -> None:
    """One kind of step says how fast the device is, and nothing of prefill: no drift without variety."""
    rng, fit = random.Random(seed), StepTimeFit(CALIBRATION)
    for step in range(WINDOW):
        shape = alone(first + step % 200)
        fit.observe(shape, slower * CALIBRATION.predict(shape) * rng.lognormvariate(0, 0.03))
    # contexts do vary a little, so that some time may move between what every step costs and what context costs
    for name, within in {"a": 0.25, "b": 0.02, "c": 0.25, "d": 0.75, "e": 0.02}.items():
        assert getattr(fit.current, name) == pytest.approx(slower * getattr(CALIBRATION, name), rel=within)
    seen = alone(first + 100)
    assert fit.current.predict(seen) == pytest.approx(slower * CALIBRATION.predict(seen), rel=0.03)


@given(truth=truths, seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_a_neighbour_in_one_step_of_twenty_moves_no_prediction_by_a_tenth(truth: StepTime, seed: int) -> None:
    rng, fit = random.Random(seed), StepTimeFit(CALIBRATION)
    for step in range(WINDOW):
        shape = varied(rng)
        fit.observe(shape, truth.predict(shape) * (10 if step % 20 == 7 else 1))
    for _ in range(50):
        shape = varied(rng)
        assert fit.current.predict(shape) == pytest.approx(truth.predict(shape), rel=0.1)


@given(
    steps=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 512), st.booleans()), min_size=1, max_size=40),
    seconds=st.lists(st.floats(1e-6, 1e4), min_size=40, max_size=40),
)
def test_no_step_however_odd_makes_a_coefficient_that_is_none(
    steps: list[tuple[int, int, bool]], seconds: list[float]
) -> None:
    shapes = [chunk_shape(context, size, is_decode=decode) for context, size, decode in steps]
    fitted = fit_shapes(CALIBRATION, shapes, seconds[: len(shapes)])
    assert all(0 <= value < 60 for value in fitted.coefficients)


def test_the_calibration_stands_until_there_is_data() -> None:
    fit = StepTimeFit(CALIBRATION)
    for step in range(REFIT_EVERY - 1):
        fit.observe(alone(step), 1.0)
    assert fit.current is CALIBRATION
    fit.observe(alone(5), 1.0)
    assert fit.current.predict(alone(5)) == pytest.approx(1.0, rel=0.05)


def test_what_left_the_window_is_forgotten() -> None:
    rng, fit = random.Random(3), StepTimeFit(CALIBRATION)
    for slower in (8.0, 1.0):
        for _ in range(WINDOW):
            shape = varied(rng)
            fit.observe(shape, slower * CALIBRATION.predict(shape))
    assert fit.current.coefficients == pytest.approx(CALIBRATION.coefficients, rel=1e-3)


@pytest.mark.parametrize(("shape", "seconds"), [(NOTHING, 1.0), (alone(3), 0.0), (alone(3), -1.0)])
def test_an_empty_step_or_a_stopped_clock_teaches_nothing(shape: StepShape, seconds: float) -> None:
    fit = StepTimeFit(CALIBRATION)
    for _ in range(2 * WINDOW):
        fit.observe(shape, seconds)
    assert fit.current is CALIBRATION


def test_the_same_steps_give_the_same_fit() -> None:
    fits = StepTimeFit(CALIBRATION), StepTimeFit(CALIBRATION)
    rng = random.Random(4)
    for _ in range(WINDOW):
        shape, seconds = varied(rng), rng.uniform(0.01, 1)
        for fit in fits:
            fit.observe(shape, seconds)
    assert fits[0].current == fits[1].current


@given(seed=st.integers(0, 10_000))
def test_the_non_negative_minimum_has_no_way_down(seed: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: flat where an unknown is above zero, rising where it is zero."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(8, 5))
    gram, moment = rows.T @ rows + 0.1 * np.eye(5), rng.normal(size=5)
    solved = nonnegative(gram, moment)
    slope = gram @ solved - moment
    assert (solved >= 0).all()
    assert np.allclose(slope[solved > 0], 0, atol=1e-9)
    assert (slope[solved == 0] >= -1e-9).all()


def test_the_fit_needs_no_torch() -> None:
    code = "import sys; import core_engine.llm.step_time_fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

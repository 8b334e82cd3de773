"""Groups of integers: what they stand for, how far from the floats, and that the linear layer is their exact sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.quantise import (
    SMALLEST_SCALE,
    GroupQuantised,
    cat,
    int_linear,
    pack_nibbles,
    quantise_activations,
    quantise_int4,
    quantise_int8,
    unpack_nibbles,
)
from tests.kernels.tolerance import TOLERANCE, relative_rms

Quantiser = Callable[[torch.Tensor, int], GroupQuantised]
QUANTISERS: dict[str, Quantiser] = {
    "int8": quantise_int8,
    "int4": quantise_int4,
    "int4_symmetric": partial(quantise_int4, symmetric=True),
}
quantisers = st.sampled_from(sorted(QUANTISERS))
groups = st.sampled_from([32, 64])
seeds = st.integers(0, 2**20)
sizes = st.integers(1, 150)
even_sizes = st.integers(1, 75).map(lambda half: 2 * half)
magnitudes = st.sampled_from([0.0, 1e-9, 1e-6, 1e-3, 1.0, 1e3])


def randn(rows: int, inputs: int, seed: int, magnitude: float = 1.0) -> torch.Tensor:
    """Rows of very different sizes, some of them zero or of one sign."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    x *= torch.randint(0, 4, (rows, 1), generator=generator)
    x[::3] = x[::3].abs()
    return x * magnitude


def by_input(numbers: torch.Tensor, group: int, inputs: int) -> torch.Tensor:
    return numbers.double().repeat_interleave(group, 1)[:, :inputs]


@given(name=quantisers, group=groups, rows=st.integers(1, 9), inputs=even_sizes, seed=seeds, magnitude=magnitudes)
def test_no_number_is_off_by_more_than_half_a_step(
    name: str, group: int, rows: int, inputs: int, seed: int, magnitude: float
) -> None:
    weight = randn(rows, inputs, seed, magnitude)
    quantised = QUANTISERS[name](weight, group)
    assert quantised.shape == weight.shape
    steps = by_input(quantised.scales, group, inputs).abs()
    allowed = steps * 0.5001
    if name == "int4_symmetric":  # the opposite side ends at 7 steps; a subnormal scale is itself off by half a step
        clipped = (weight.double().abs() - 7 * steps).clamp(min=0)
        allowed = torch.maximum(allowed, clipped * 1.0001)
    assert ((quantised.dequantise().double() - weight.double()).abs() <= allowed).all()


@given(group=groups, inputs=sizes, seed=seeds, magnitude=magnitudes)
def test_steps_are_as_fine_as_the_groups_largest_number_allows(
    group: int, inputs: int, seed: int, magnitude: float
) -> None:
    weight = randn(6, inputs, seed, magnitude)
    quantised = quantise_int8(weight, group)
    for index, part in enumerate(torch.split(weight, group, dim=1)):
        least = part.double().abs().amax(1) / 127
        scale = quantised.scales[:, index].double()
        assert (scale >= least * (1 - 1e-7)).all()
        assert (scale <= least * (1 + 2**-10) + SMALLEST_SCALE).all()


def test_zeros_stay_zeros_and_scales_positive() -> None:
    for quantise in QUANTISERS.values():
        quantised = quantise(torch.zeros(3, 96), 64)
        assert (quantised.scales > 0).all()
        assert not quantised.dequantise().any()


@pytest.mark.parametrize("low", [-3.0, 0.5, -0.25])
def test_minimums_use_all_codes_between_the_extremes(low: float) -> None:
    weight = torch.linspace(low, low + 1.5, 64).view(1, 64)
    quantised = quantise_int4(weight, 64)
    codes = unpack_nibbles(quantised.codes)
    assert sorted(set(codes.flatten().tolist())) == list(range(16))
    assert quantised.minimums is not None
    assert quantised.minimums.item() == low


def test_the_number_of_largest_magnitude_is_exact_in_symmetric_int4() -> None:
    for extreme in (-2.0, 2.0):
        weight = torch.linspace(-1, 1, 32).view(1, 32)
        weight[0, 5] = extreme
        quantised = quantise_int4(weight, 32, symmetric=True)
        assert quantised.dequantise()[0, 5] == extreme
        assert quantised.scales.item() == -extreme / 8


@given(name=quantisers, group=groups, rows=st.integers(0, 5), out=st.integers(1, 9), inputs=even_sizes, seed=seeds)
def test_the_linear_layer_is_the_sum_over_dequantised_weights_and_activations(
    name: str, group: int, rows: int, out: int, inputs: int, seed: int
) -> None:
    weight = QUANTISERS[name](torch.randn(out, inputs, generator=torch.Generator().manual_seed(seed)), group)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed + 1))
    result = int_linear(x, weight)
    codes, scales = quantise_activations(x)
    expected = codes.double() * by_input(scales, 64, inputs) @ weight.dequantise().double().T
    assert result.shape == (rows, out)
    assert result.dtype == torch.float32
    magnitude = (codes.double() * by_input(scales, 64, inputs)).abs() @ weight.dequantise().double().abs().T
    assert ((result - expected).abs() <= 1e-5 * magnitude).all()


@pytest.mark.parametrize("name", sorted(QUANTISERS))
@pytest.mark.parametrize("group", [32, 64])
def test_the_linear_layer_is_near_that_of_floats(name: str, group: int) -> None:
    x, weight = randn(16, 576, 1) + 1, torch.randn(48, 576, generator=torch.Generator().manual_seed(2))
    error = relative_rms(int_linear(x, QUANTISERS[name](weight, group)), x.double() @ weight.double().T)
    assert error <= (2e-2 if name == "int8" else 0.15)


def test_a_wrong_minimum_or_scale_is_seen_by_the_tolerance() -> None:
    x = randn(7, 128, 3) + 1
    weight = quantise_int4(torch.randn(9, 128, generator=torch.Generator().manual_seed(4)), 32)
    assert weight.minimums is not None
    expected = int_linear(x, weight).double()
    scales, minimums = weight.scales.clone(), weight.minimums.clone()
    scales[2, 1] *= 1.01
    minimums[2, 1] *= 1.01
    for wrong in (
        GroupQuantised(weight.codes, scales, weight.minimums, 4, 32),
        GroupQuantised(weight.codes, weight.scales, minimums, 4, 32),
    ):
        assert relative_rms(int_linear(x, wrong), expected) > TOLERANCE[torch.float32]


@given(name=quantisers, seed=seeds, rows=st.integers(2, 40))
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(name: str, seed: int, rows: int) -> None:
    weight = QUANTISERS[name](randn(33, 160, seed), 32)
    x = randn(rows, 160, seed + 1)
    together = int_linear(x, weight)
    assert torch.equal(together, torch.cat([int_linear(x[row : row + 1], weight) for row in range(rows)]))


@given(inputs=sizes, seed=seeds, magnitude=st.sampled_from([0.0, 1e-45, 1e-38, 1e-20, 1.0, 1e30]))
def test_activations_are_within_half_a_step_of_any_size(inputs: int, seed: int, magnitude: float) -> None:
    x = randn(4, inputs, seed, magnitude)
    codes, scales = quantise_activations(x)
    assert codes.shape == x.shape
    assert codes.abs().max() <= 127
    steps = by_input(scales, 64, inputs)
    error = (codes.double() * steps - x.double()).abs()
    assert (error <= steps * 0.5001 + 1e-30).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_not_finite_in_the_result(poison: float) -> None:
    x = torch.ones(2, 128)
    x[1, 70] = poison
    result = int_linear(x, quantise_int8(torch.ones(3, 128), 64))
    assert result[0].isfinite().all()
    assert not result[1].isfinite().any()


def test_activations_of_bfloat16_are_those_of_their_floats() -> None:
    x = randn(3, 100, 5).bfloat16()
    assert torch.equal(quantise_activations(x).codes, quantise_activations(x.float()).codes)
    assert torch.equal(quantise_activations(x).scales, quantise_activations(x.float()).scales)


@given(name=quantisers, group=groups, seed=seeds, data=st.data())
def test_rows_are_those_of_the_floats(name: str, group: int, seed: int, data: st.DataObject) -> None:
    weight = QUANTISERS[name](randn(8, 70, seed), group)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 7), max_size=12)), dtype=torch.int64)
    assert torch.equal(weight.rows(ids).dequantise(), weight.dequantise()[ids])


@given(group=groups, seed=seeds, names=st.lists(st.sampled_from(["int4", "int4_symmetric"]), min_size=1, max_size=4))
def test_stacked_weights_stand_for_the_same_numbers(group: int, seed: int, names: list[str]) -> None:
    weights = [QUANTISERS[name](randn(5, 70, seed + index), group) for index, name in enumerate(names)]
    together = cat(weights)
    assert (together.minimums is None) == (set(names) == {"int4_symmetric"})
    expected = torch.cat([weight.dequantise() for weight in weights])
    torch.testing.assert_close(together.dequantise(), expected, rtol=0, atol=1e-5)


def test_weights_of_several_kinds_are_not_stacked() -> None:
    weight = torch.ones(4, 64)
    eight, four = quantise_int8(weight, 64), quantise_int4(weight, 64)
    for other in (four, quantise_int8(weight, 32), quantise_int8(torch.ones(4, 60), 64)):
        with pytest.raises(ValueError, match="cannot be stacked"):
            cat([eight, other])


@given(rows=st.integers(0, 5), half=st.integers(0, 40), seed=seeds)
def test_nibbles_come_back_as_they_were(rows: int, half: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, 2 * half), dtype=torch.uint8, generator=generator)
    packed = pack_nibbles(codes)
    assert packed.shape == (rows, half)
    assert torch.equal(unpack_nibbles(packed), codes)
    assert torch.equal(packed & 15, codes[:, 0::2])


@pytest.mark.parametrize(("name", "worst"), [("int8", 9e6), ("int4", 1e6), ("int4_symmetric", 6e5)])
@pytest.mark.parametrize("poison", [None, float("nan"), float("inf")])
def test_what_float16_scales_cannot_hold_is_refused(name: str, worst: float, poison: float | None) -> None:
    weight = torch.ones(3, 64)
    weight[1, 7] = worst if poison is None else poison
    with pytest.raises(ValueError, match=r"a group needs a scale or minimum of size .*float16 ends at 65504"):
        QUANTISERS[name](weight, 32)


def test_bad_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="7 inputs cannot be packed"):
        quantise_int4(torch.ones(2, 7))
    with pytest.raises(ValueError, match="group = 48: expected 32 or 64"):
        quantise_int8(torch.ones(2, 64), 48)
    codes, scales = torch.ones(2, 64, dtype=torch.int8), torch.ones(2, 1, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"scales are torch\.float16 \(2, 1\), expected torch\.float16 \(2, 2\)"):
        GroupQuantised(codes, scales, None, 8, 32)
    with pytest.raises(ValueError, match=r"scales are torch\.float32"):
        GroupQuantised(codes, scales.float(), None, 8, 64)
    with pytest.raises(ValueError, match=r"codes are torch\.int8 .*expected torch\.uint8"):
        GroupQuantised(codes, scales, None, 4, 64)
    with pytest.raises(ValueError, match="symmetric"):
        GroupQuantised(codes, scales, scales, 8, 64)
    with pytest.raises(ValueError, match="minimum of -8 times as much is beyond float16"):
        quantise_int4(torch.full((2, 64), 70_000.0), symmetric=True)
    with pytest.raises(ValueError, match="bits = 5"):
        GroupQuantised(codes, scales, None, 5, 64)


def test_bytes_are_counted() -> None:
    weight = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    assert quantise_int8(weight, 64).num_bytes == 4 * (128 + 2 * 2)
    assert quantise_int4(weight, 32).num_bytes == 4 * (64 + 2 * 2 * 4)

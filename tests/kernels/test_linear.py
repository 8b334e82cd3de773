"""One linear layer over floats and over groups of integers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.linear import linear, rows_of, stacked
from kernels.quantise import int_linear, quantise_int4, quantise_int8


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_over_floats_it_is_torchs_own(dtype: torch.dtype) -> None:
    x, weight, bias = (each.to(dtype) for each in (randn(3, 40), randn(7, 40, seed=1), randn(7, seed=2)))
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_over_integers_it_is_rounded_once_after_the_bias(dtype: torch.dtype) -> None:
    x, weight, bias = randn(3, 40).to(dtype), quantise_int8(randn(7, 40, seed=1)), randn(7, seed=2)
    assert torch.equal(linear(x, weight), int_linear(x, weight).to(dtype))
    assert torch.equal(linear(x, weight, bias), (int_linear(x, weight) + bias).to(dtype))


def test_rows_and_stacks_are_those_of_the_outputs() -> None:
    x, first, second = randn(3, 64), randn(7, 64, seed=1), randn(5, 64, seed=2)
    ids = torch.tensor([6, 0, 0])
    for weights in ([first, second], [quantise_int4(first), quantise_int4(second)]):
        outputs = linear(x, weights[0])
        torch.testing.assert_close(linear(x, rows_of(weights[0], ids)), outputs[:, ids])
        both = torch.cat((outputs, linear(x, weights[1])), dim=1)
        torch.testing.assert_close(linear(x, stacked(*weights)), both)


def test_floats_and_integers_are_not_stacked() -> None:
    with pytest.raises(ValueError, match="1 quantised weights and 1 others cannot be stacked"):
        stacked(randn(4, 64), quantise_int8(randn(4, 64)))

"""RMSNorm, SiLU-mul and RoPE: the references against their formulas in float64, at odd shapes."""

from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import rms_norm
from kernels.rope import inverse_frequencies, rope, rope_table, rotations
from kernels.silu_mul import silu_mul
from tests.kernels.tolerance import TOLERANCE, assert_close, relative_rms

DTYPES = sorted(TOLERANCE, key=str)


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 576), (3, 7), (33, 65)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, int], scale: float) -> None:
    x, weight = randn(*shape, dtype=dtype) * scale, randn(shape[1], dtype=dtype, seed=1)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (5, 1536), (17, 34)])
def test_silu_mul(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    gate_up = randn(*shape, dtype=dtype) * 3
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "num_heads", "head_dim"), [(1, 1, 2), (7, 3, 64), (13, 9, 10)])
def test_rope_turns_each_pair_by_its_angle(dtype: torch.dtype, num_tokens: int, num_heads: int, head_dim: int) -> None:
    positions = torch.arange(num_tokens) * 5
    cos, sin = rope_table(head_dim, 200, 10_000.0)
    x = randn(num_tokens, num_heads, head_dim, dtype=dtype)
    half = head_dim // 2
    rate = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(num_tokens, half, dtype=torch.float64), positions.double()[:, None] * rate)
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn[:, None, :]
    assert_close(rope(x, cos[positions], sin[positions]), torch.cat((pairs.real, pairs.imag), dim=-1))


def test_rotations_take_one_row_of_frequencies_for_all_or_one_for_each() -> None:
    positions, inverse = torch.tensor([0, 3, 150]), inverse_frequencies(10, 10_000.0)
    cos, sin = rotations(positions, inverse, 1.5)
    table = rope_table(10, 200, 10_000.0)
    torch.testing.assert_close(cos, table[0][positions] * 1.5)
    torch.testing.assert_close(sin, table[1][positions] * 1.5)
    each = rotations(positions, torch.stack((inverse, inverse / 2, inverse / 4)))
    torch.testing.assert_close(each[0][2], (150 * inverse / 4).cos())
    torch.testing.assert_close(each[1][1], (3 * inverse / 2).sin())


def test_rope_keeps_lengths_and_position_zero() -> None:
    cos, sin = rope_table(8, 50, 10_000.0)
    x = randn(50, 2, 8, dtype=torch.float32)
    turned = rope(x, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[0], x[0])


def test_a_wrong_kernel_fails_the_table() -> None:
    x, weight = randn(4, 64, dtype=torch.float32), torch.ones(64)
    expected = x.double() / x.double().pow(2).mean(-1, keepdim=True).sqrt()
    assert relative_rms(rms_norm(x, weight, 0.1), expected) > TOLERANCE[torch.float32]
    assert relative_rms(x * float("nan"), expected) == float("inf")

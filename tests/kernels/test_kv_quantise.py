"""Keys and values of 8 bits: within half a step of each head's own scale, whatever is beside it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.kv_quantise import QuantisedKv, dequantise_kv, quantise_kv
from tests.kernels.tolerance import relative_rms


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(tokens=st.integers(0, 5), heads=st.integers(1, 4), dim=st.integers(1, 130), seed=st.integers(0, 2**20))
def test_every_number_is_within_half_a_step_of_its_head(tokens: int, heads: int, dim: int, seed: int) -> None:
    new = randn(tokens, heads, dim, seed=seed) * 10.0 ** torch.arange(heads)[:, None]
    codes, scales = quantise_kv(new)
    assert (codes.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert scales.shape == (tokens, heads)
    torch.testing.assert_close(scales, new.abs().amax(-1) / 127)
    error = (dequantise_kv(QuantisedKv(codes, scales)) - new).abs()
    assert (error <= scales[..., None] * 0.5001).all()


def test_a_head_of_zeros_stays_zero_beside_others() -> None:
    new = randn(3, 2, 64)
    new[1, 0] = 0
    quantised = quantise_kv(new)
    assert not quantised.codes[1, 0].any()
    assert not dequantise_kv(quantised)[1, 0].any()
    assert dequantise_kv(quantised)[1, 1].any()


def test_a_token_has_the_same_codes_whatever_tokens_are_beside_it() -> None:
    new = randn(5, 3, 64).bfloat16()
    together = quantise_kv(new)
    for token in range(5):
        alone = quantise_kv(new[token : token + 1])
        assert torch.equal(alone.codes[0], together.codes[token])
        assert torch.equal(alone.scales[0], together.scales[token])


def test_rounding_costs_less_than_a_hundredth() -> None:
    new = randn(64, 3, 64)
    assert relative_rms(dequantise_kv(quantise_kv(new)), new.double()) < 1e-2
    codes, scales = quantise_kv(new)
    shifted = QuantisedKv(codes, scales.roll(1, dims=0))  # every token by its neighbour's scale
    assert relative_rms(dequantise_kv(shifted), new.double()) > 5e-2

"""Codes taken as they are stand for what the gguf package makes of the same bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.gguf_codes import BITS, BLOCK_BYTES, group_codes

KINDS = sorted(BITS)
FLOAT16_PLACES = {Kind.Q8_0: (0,), Kind.Q4_0: (0,), Kind.Q4_1: (0, 2), Kind.Q4_K: (0, 2)}


def random_rows(kind: Kind, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Any codes, with float16 numbers of either sign where the type has them; uint8 [rows, row_bytes]."""
    draw = np.random.default_rng(seed)
    data = draw.integers(0, 256, (rows, blocks, BLOCK_BYTES[kind]), dtype=np.uint8)
    for place in FLOAT16_PLACES[kind]:
        numbers = draw.normal(0, 10.0 ** draw.integers(-5, 2), (rows, blocks, 1)).astype(np.float16)
        data[:, :, place : place + 2] = numbers.view(np.uint8)
    return data.reshape(rows, -1)


@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_codes_stand_for_the_numbers_of_the_gguf_package(kind: Kind, rows: int, blocks: int, seed: int) -> None:
    data = random_rows(kind, rows, blocks, seed)
    expected = torch.from_numpy(gguf.quants.dequantize(data, kind))
    quantised = group_codes(data, kind)
    assert (quantised.bits, quantised.group) == (BITS[kind], 32)
    if kind is not Kind.Q4_K:
        assert torch.equal(quantised.dequantise(), expected)
        return
    # scale and minimum are rounded to float16 each
    assert quantised.minimums is not None
    rounding = [numbers.float().abs() * 2**-11 + 2**-25 for numbers in (quantised.scales, quantised.minimums)]
    allowed = (15 * rounding[0] + rounding[1]).repeat_interleave(32, dim=1)
    assert ((quantised.dequantise() - expected).abs() <= allowed * 1.001).all()


def test_the_package_and_the_table_agree_on_sizes() -> None:
    assert {kind: gguf.GGML_QUANT_SIZES[kind][1] for kind in KINDS} == BLOCK_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_a_copy(kind: Kind) -> None:
    data = random_rows(kind, 2, 1, 3)
    quantised = group_codes(data, kind)
    before = quantised.dequantise()
    data[:] = 0
    assert torch.equal(quantised.dequantise(), before)


@pytest.mark.parametrize(
    ("kind", "place"), [(kind, place) for kind, places in FLOAT16_PLACES.items() for place in places]
)
def test_a_scale_that_is_not_finite_is_refused(kind: Kind, place: int) -> None:
    data = random_rows(kind, 2, 2, 3)
    start = BLOCK_BYTES[kind] + place
    data[1, start : start + 2] = np.array([np.inf], dtype=np.float16).view(np.uint8)
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="not finite in float16"):
        group_codes(data, kind)


def test_a_product_beyond_float16_is_refused() -> None:
    data = random_rows(Kind.Q4_K, 1, 1, 3)
    data[0, 0:2] = np.array([60_000], dtype=np.float16).view(np.uint8)
    data[0, 4] = 63
    with pytest.raises(ValueError, match="not finite in float16"):
        group_codes(data, Kind.Q4_K)

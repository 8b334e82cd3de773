"""Codes of a GGUF's quantised tensors in the layout of `kernels.quantise`, without a detour through float.

Q8_0, Q4_0 and Q4_1 stand for exactly the same numbers in both. Q4_K has 6-bit factors of one float16 scale per 256
inputs; their product is rounded to the float16 that a group has: by at most 1 part in 2048 of scale and minimum, or by
2^-25 where they are subnormal, which is below 1 % of half a step.

Source: ggml's block layouts, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from kernels.quantise import GroupQuantised, pack_nibbles

BITS = {Kind.Q8_0: 8, Kind.Q4_0: 4, Kind.Q4_1: 4, Kind.Q4_K: 4}
BLOCK_BYTES = {Kind.Q8_0: 34, Kind.Q4_0: 18, Kind.Q4_1: 20, Kind.Q4_K: 144}
GROUP = 32


def group_codes(rows: np.ndarray, kind: Kind) -> GroupQuantised:
    """Of a tensor's bytes, uint8 [out, row_bytes], of one of the types in `BITS`; groups of 32.

    Raises:
        ValueError: for a scale or minimum that is not finite in float16.
    """
    blocks = rows.reshape(len(rows), -1, BLOCK_BYTES[kind])
    if kind is Kind.Q8_0:
        codes = torch.from_numpy(blocks[..., 2:].copy().reshape(len(rows), -1).view(np.int8))
        return GroupQuantised(codes, _scales(_float16(blocks, 0)), None, 8, GROUP)
    if kind is Kind.Q4_0:
        return GroupQuantised(_nibbles(blocks[..., 2:], 16), _scales(_float16(blocks, 0)), None, 4, GROUP)
    if kind is Kind.Q4_1:
        scales, minimums = _scales(_float16(blocks, 0)), _scales(_float16(blocks, 2))
        return GroupQuantised(_nibbles(blocks[..., 4:], 16), scales, minimums, 4, GROUP)
    scale_factors, minimum_factors = _six_bits(blocks[..., 4:16])
    scales = _scales(_float16(blocks, 0).astype(np.float32) * scale_factors)
    minimums = _scales(_float16(blocks, 2).astype(np.float32) * -minimum_factors)
    return GroupQuantised(_nibbles(blocks[..., 16:], 32), scales, minimums, 4, GROUP)


def _float16(blocks: np.ndarray, place: int) -> np.ndarray:
    """[out, num_blocks, 1]: each block's number at byte `place`."""
    return np.ascontiguousarray(blocks[..., place : place + 2]).view("<f2")


def _scales(numbers: np.ndarray) -> torch.Tensor:
    """Float16 [out, num_groups], a copy."""
    with np.errstate(over="ignore"):  # refused in the next line
        rounded = numbers.reshape(len(numbers), -1).astype(np.float16)
    if not np.isfinite(rounded).all():
        raise ValueError("a scale or minimum is not finite in float16")
    return torch.from_numpy(rounded)


def _nibbles(blocks: np.ndarray, width: int) -> torch.Tensor:
    """Stored are `width` low nibbles, then the high ones of the same bytes; returned as `pack_nibbles` has them."""
    stored = blocks.reshape(len(blocks), -1, 1, width)
    codes = np.concatenate((stored & 15, stored >> 4), axis=2).reshape(len(blocks), -1)
    return pack_nibbles(torch.from_numpy(codes))


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The factors of eight scales and of eight minimums, float32 [out, num_blocks, 8] each, from 12 bytes a block.

    Four bytes have the first four scales and, in their upper bits, what the last four lack; four more bytes the same of
    the minimums; the last four bytes have the lower nibbles of the last four, scale below and minimum above.
    """
    scales, minimums, rest = (packed[..., start : start + 4] for start in (0, 4, 8))
    last_scales, last_minimums = rest & 15 | scales >> 6 << 4, rest >> 4 | minimums >> 6 << 4
    return (
        np.concatenate((scales & 63, last_scales), axis=-1).astype(np.float32),
        np.concatenate((minimums & 63, last_minimums), axis=-1).astype(np.float32),
    )

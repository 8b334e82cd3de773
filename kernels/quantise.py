"""Integer weights and activations by groups along the input, and the linear layer over them.

A weight of `in` inputs has one scale per output and group of 32 or 64 inputs (the last group may be shorter):

    8 bits:               w = scale * code               code in -127 .. 127 (-128 only if a file has it)
    4 bits, symmetric:    w = scale * (code - 8)         code in 0 .. 15
    4 bits with minimums: w = scale * code + minimum     code in 0 .. 15

Activations are quantised as they come, per row and group of 64: scale = amax / 127, code = round(x * (127 / amax)),
halves to even. With s, m of the weight and a of the activations, and S(g) the exact integer sum over group g,

    y = sum over g of  s * a * S(code_w * code_x)  +  m * a * S(code_x)

Scales and minimums are float16, and codes are those that fit the rounded scale.

Source: Dettmers et al., "LLM.int8()", 2022, section 2 (absmax); Yao et al., "ZeroQuant", 2022, section 3 (by groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

ACTIVATION_GROUP = 64
GROUPS = (32, 64)
NOTHING = 1e-30  # the reciprocal of a smaller amax may not be finite: such a group counts as zero
SMALLEST_SCALE = 2.0**-24  # float16's smallest positive number
LARGEST_SCALE = 65504.0


@dataclass(frozen=True, slots=True)
class GroupQuantised:
    """A weight [out, in] of 8 or 4 bits. A negative scale is sound: files of llama.cpp have them."""

    codes: torch.Tensor  # int8 [out, in]; of 4 bits uint8 [out, in / 2], input 2i in the low nibble
    scales: torch.Tensor  # float16 [out, ceil(in / group)]
    minimums: torch.Tensor | None  # float16 [out, ceil(in / group)]; None is symmetric
    bits: int
    group: int

    def __post_init__(self) -> None:
        """Raises `ValueError` naming what does not fit together."""
        if self.bits not in (4, 8) or self.group not in GROUPS:
            raise ValueError(f"bits = {self.bits}, group = {self.group}: expected 4 or 8 bits, groups of 32 or 64")
        if self.bits == 8 and self.minimums is not None:
            raise ValueError("weights of 8 bits are symmetric, they have no minimums")
        _expect("codes", self.codes, torch.int8 if self.bits == 8 else torch.uint8, self.codes.shape)
        groups = (len(self.codes), -(-self.shape[1] // self.group))
        _expect("scales", self.scales, torch.float16, groups)
        if self.minimums is not None:
            _expect("minimums", self.minimums, torch.float16, groups)
        elif self.bits == 4 and bool((self.scales.abs() > LARGEST_SCALE / 8).any()):
            raise ValueError("a symmetric scale is too large: its minimum of -8 times as much is beyond float16")

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in), as the float weight has it."""
        return self.codes.shape[0], self.codes.shape[1] * 8 // self.bits

    @property
    def num_bytes(self) -> int:
        tensors = [self.codes, self.scales] + ([] if self.minimums is None else [self.minimums])
        return sum(tensor.nbytes for tensor in tensors)

    def integers(self) -> torch.Tensor:
        """What the scales multiply, int8 [out, in]: of symmetric 4 bits -8 .. 7, of those with minimums 0 .. 15."""
        if self.bits == 8:
            return self.codes
        codes = unpack_nibbles(self.codes).to(torch.int8)
        return codes - 8 if self.minimums is None else codes

    def dequantise(self) -> torch.Tensor:
        """Float32 [out, in]."""
        weight = self.integers().float() * self._by_input(self.scales)
        return weight if self.minimums is None else weight + self._by_input(self.minimums)

    def rows(self, ids: torch.Tensor) -> GroupQuantised:
        """Rows `ids` [n], in that order: a selection or a permutation of the outputs. Copies."""
        minimums = None if self.minimums is None else self.minimums[ids]
        return GroupQuantised(self.codes[ids], self.scales[ids], minimums, self.bits, self.group)

    def explicit_minimums(self) -> torch.Tensor:
        """Minimums that say the same if codes are 0 .. 15: of a symmetric weight -8 * scale, exact in float16."""
        return -8 * self.scales if self.minimums is None else self.minimums

    def _by_input(self, numbers: torch.Tensor) -> torch.Tensor:
        return _spread(numbers.float(), self.group, self.shape[1])


class QuantisedActivations(NamedTuple):
    codes: torch.Tensor  # int8 [num_rows, in]
    scales: torch.Tensor  # float32 [num_rows, ceil(in / 64)]


def cat(weights: Sequence[GroupQuantised]) -> GroupQuantised:
    """One weight whose outputs are those of `weights`, one after the other; with minimums if one of them has some.

    Raises:
        ValueError: if they differ in inputs, bits or group.
    """
    kinds = {(weight.shape[1], weight.bits, weight.group) for weight in weights}
    if len(kinds) != 1:
        raise ValueError(f"weights of (inputs, bits, group) {sorted(kinds)} cannot be stacked: expected one kind")
    minimums = None
    if any(weight.minimums is not None for weight in weights):
        minimums = _cat([weight.explicit_minimums() for weight in weights])
    codes, scales = (_cat([getattr(weight, name) for weight in weights]) for name in ("codes", "scales"))
    return GroupQuantised(codes, scales, minimums, weights[0].bits, weights[0].group)


def _cat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """By numpy, which copies and holds no GIL; beside busy processes torch's threads took ten times the CPU for it."""
    return torch.from_numpy(np.concatenate([tensor.numpy() for tensor in tensors]))


def quantise_int8(weight: torch.Tensor, group: int = 64) -> GroupQuantised:
    """Of a float weight [out, in]; scale = amax / 127, rounded up to float16, so that no code is clipped.

    Raises:
        ValueError: for numbers that are not finite or need a scale beyond float16, and for another group.
    """
    groups = _grouped(weight.float(), group)
    least, largest = groups.aminmax(dim=-1)
    scales = _round_up(torch.maximum(-least, largest) / 127).clamp_(min=SMALLEST_SCALE)
    codes = (groups / scales.float()[..., None]).round_().to(torch.int8)
    return GroupQuantised(_flat(codes, weight), scales, None, 8, group)


def quantise_int4(weight: torch.Tensor, group: int = 64, *, symmetric: bool = False) -> GroupQuantised:
    """Of a float weight [out, in], an even number of inputs.

    Symmetric: the number of largest magnitude is code 0, that is -8 * scale, so the scale has the opposite sign; what
    is nearly as large on the other side is clipped to 7 * scale. Otherwise a group's least number is code 0 and its
    largest code 15; minimum rounded down and scale up, so that nothing is clipped.

    Raises:
        ValueError: for numbers that are not finite or need a scale beyond float16, for an odd number of inputs, and for
            another group.
    """
    if weight.shape[1] % 2:
        raise ValueError(f"{weight.shape[1]} inputs cannot be packed two in a byte: expected an even number")
    groups = _grouped(weight.float(), group)
    least, largest = groups.aminmax(dim=-1)
    if symmetric:
        scales = _float16(torch.where(-least > largest, least, largest) / -8)
        scales = torch.where(scales == 0, SMALLEST_SCALE, scales)
        minimums, low = None, -8 * scales.float()
    else:
        minimums = -_round_up(-least)
        low = minimums.float()
        scales = _round_up((largest - low) / 15).clamp_(min=SMALLEST_SCALE)
    codes = (groups - low[..., None]).div_(scales.float()[..., None]).round_().clamp_(0, 15).to(torch.uint8)
    return GroupQuantised(pack_nibbles(_flat(codes, weight)), scales, minimums, 4, group)


def quantise_activations(x: torch.Tensor, group: int = ACTIVATION_GROUP) -> QuantisedActivations:
    """Of float rows [num_rows, in]. A group of zeros has codes 0; one with a NaN or an infinity has such a scale."""
    x = x.float()
    padded = F.pad(x, (0, -x.shape[1] % group))
    amax = padded.reshape(len(x), padded.shape[1] // group, group).abs().amax(-1)
    inverse = torch.where(amax > NOTHING, 127 / amax, 0.0)
    codes = (x * _spread(inverse, group, x.shape[1])).nan_to_num_(0.0).round_().clamp_(-127, 127)
    return QuantisedActivations(codes.to(torch.int8), amax / 127)


def int_linear(x: torch.Tensor, weight: GroupQuantised) -> torch.Tensor:
    """Reference. x [num_rows, in] of any float type times the transposed weight: float32 [num_rows, out].

    Groups are added in order, each an exact integer (below 2^24, so exact in float32 in any order of addition): a row's
    result does not depend on the other rows.
    """
    codes, scales = quantise_activations(x)
    factors = torch.split(weight.integers(), weight.group, dim=1)
    out = torch.zeros(len(x), weight.shape[0])
    for index, (inputs, factor) in enumerate(zip(torch.split(codes, weight.group, dim=1), factors, strict=True)):
        row_scales = scales[:, index * weight.group // ACTIVATION_GROUP, None]  # [num_rows, 1]
        out.addcmul_(inputs.float() @ factor.float().T, row_scales * weight.scales[:, index].float())
        if weight.minimums is not None:
            sums = inputs.sum(1, keepdim=True, dtype=torch.int32)
            out.addcmul_(row_scales * sums, weight.minimums[:, index].float())
    return out


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [out, in] of 0 .. 15 as uint8 [out, in / 2]: input 2i in the low nibble, 2i + 1 in the high one."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The opposite of `pack_nibbles`."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def _grouped(weight: torch.Tensor, group: int) -> torch.Tensor:
    """[out, num_groups, group]; a short last group is filled with its own last number, which changes no extreme."""
    if group not in GROUPS:
        raise ValueError(f"group = {group}: expected 32 or 64")
    if missing := -weight.shape[1] % group:
        weight = torch.cat((weight, weight[:, -1:].expand(-1, missing)), 1)
    return weight.reshape(len(weight), weight.shape[1] // group, group)


def _flat(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[out, num_groups, group] as [out, in] of `weight`."""
    return codes.flatten(1)[:, : weight.shape[1]].contiguous()


def _spread(numbers: torch.Tensor, group: int, num_inputs: int) -> torch.Tensor:
    """[rows, num_groups] as [rows, num_inputs]: each input its group's number."""
    return numbers.repeat_interleave(group, dim=1)[:, :num_inputs]


def _float16(numbers: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest. Raises `ValueError` for what float16 cannot hold."""
    if not bool((numbers.abs() <= LARGEST_SCALE).all()):
        worst = numbers.abs().max().item()  # NaN if one is
        raise ValueError(f"a group needs a scale or minimum of size {worst:g}: float16 ends at {LARGEST_SCALE:g}")
    return numbers.half()


def _round_up(numbers: torch.Tensor) -> torch.Tensor:
    """The next float16 that is not below, of numbers of either sign."""
    rounded = _float16(numbers)
    above = torch.nextafter(rounded, torch.tensor(torch.inf, dtype=torch.float16))
    return torch.where(rounded.float() < numbers, above, rounded)


def _expect(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape) or tensor.dim() != 2:
        raise ValueError(f"{name} are {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {tuple(shape)}")

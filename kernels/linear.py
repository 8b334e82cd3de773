"""A linear layer over a weight of either kind: y = x W^T + b, in floating point or by integer groups (`quantise`)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from kernels.quantise import GroupQuantised, cat, int_linear

Weight = torch.Tensor | GroupQuantised


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Reference. `x` [num_rows, in], `weight` [out, in], `bias` [out]: [num_rows, out] in x's dtype.

    Over a quantised weight, sums and bias are float32 and rounded to x's dtype once.
    """
    if isinstance(weight, torch.Tensor):
        return F.linear(x, weight, bias)
    out = int_linear(x, weight)
    return (out if bias is None else out + bias.float()).to(x.dtype)


def stacked(*weights: Weight) -> Weight:
    """One weight whose outputs are those of `weights`, one after the other.

    Raises:
        ValueError: if some are quantised and some are not, or not in one way.
    """
    quantised = [weight for weight in weights if isinstance(weight, GroupQuantised)]
    tensors = [weight for weight in weights if isinstance(weight, torch.Tensor)]
    if quantised and tensors:
        raise ValueError(f"{len(quantised)} quantised weights and {len(tensors)} others cannot be stacked")
    return cat(quantised) if quantised else torch.cat(tensors)


def rows_of(weight: Weight, ids: torch.Tensor) -> Weight:
    """Only the outputs `ids` [n] of a weight, in that order."""
    return weight[ids] if isinstance(weight, torch.Tensor) else weight.rows(ids)

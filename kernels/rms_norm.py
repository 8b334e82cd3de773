"""Root mean square norm: y = x / sqrt(mean(x^2) + eps) * weight, the mean over the last dimension, in float32."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Reference. `x` [num_tokens, hidden], `weight` [hidden]; returns a new tensor of x's shape and dtype.

    The scaled value is rounded to x's dtype before the weight is applied, as transformers' Llama does.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, eq. 4.
    """
    scaled = x.float()
    scaled = scaled * torch.rsqrt(scaled.pow(2).mean(-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight

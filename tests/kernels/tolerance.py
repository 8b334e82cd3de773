"""The one tolerance table of the kernel tests: relative RMS error against the formula in float64."""

from __future__ import annotations

import torch

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2}


def relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over RMS of `expected`; infinite if anything in `actual` is not finite."""
    actual = actual.double()
    if not actual.isfinite().all():
        return float("inf")
    return float((actual - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt())


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    error = relative_rms(actual, expected)
    assert error <= TOLERANCE[actual.dtype], f"relative RMS error {error:.2e} in {actual.dtype}"

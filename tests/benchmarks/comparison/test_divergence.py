from __future__ import annotations

from types import SimpleNamespace

import torch
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison.divergence import EmulatedModel, int8_rounded, through_gguf


@given(group=st.sampled_from([0, 16, 32]), seed=st.integers(0, 1000))
def test_int8_rounding_is_within_half_a_step_of_its_own_group(group: int, seed: int) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
    x[1] *= 1000
    x[2, :16] = 0
    rounded = int8_rounded(x, group)
    step = x.view(3, -1, group or 64).abs().amax(-1, keepdim=True) / 127
    error = (rounded - x).abs().view(3, -1, group or 64)
    assert bool((error <= step * 0.5001 + 1e-6).all())


def test_finer_groups_lose_less() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, 3, 64)
    assert float((int8_rounded(x, 16) - x).norm()) < float((int8_rounded(x) - x).norm())


def test_a_file_s_rounding_is_that_of_the_format() -> None:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    errors = {
        kind: float((through_gguf(weight, kind) - weight).abs().max())
        for kind in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0)
    }
    exact, eight, four = errors.values()
    assert exact == 0.0
    assert 0.0 < eight < four


def test_an_emulated_scheme_gives_logits_of_every_position_from_the_first_asked_for() -> None:
    def transformer(ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=ids.unsqueeze(-1).expand(1, -1, 3).float())

    model = EmulatedModel(transformer, "none")
    rows = torch.cat(list(model.logits(list(range(600)), first=2)))
    assert torch.equal(rows[:, 0], torch.arange(2.0, 600.0))

from __future__ import annotations

import pytest
import torch

from core_engine.quality.greedy import NUM_PROMPTS, PROMPT_TOKENS, greedy, prompts
from core_engine.quality.model import PagedModel
from tests.core_engine.llm.stepping import Stepper
from tests.core_engine.quality.models import IDS, tiny_decoder

OF = [IDS[:9], IDS[20:50], IDS[60:61]]


def continuation(noise: float, prompt: list[int], num_tokens: int) -> list[int]:
    stepper = Stepper(tiny_decoder(noise), num_blocks=400)
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(stepper.prefill(ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_the_same_model_writes_the_same() -> None:
    found = greedy(PagedModel(tiny_decoder(), 200), PagedModel(tiny_decoder(), 200), OF, num_tokens=8)
    assert found.lengths == (8, 8, 8)
    assert found.mean_kl == pytest.approx(0, abs=1e-5)
    assert found.confident_flips == 0


def test_lengths_are_how_far_two_free_runs_agree() -> None:
    found = greedy(PagedModel(tiny_decoder(), 200), PagedModel(tiny_decoder(0.15), 200), OF, num_tokens=12)
    for prompt, length in zip(OF, found.lengths, strict=True):
        expected, written = continuation(0, prompt, 12), continuation(0.15, prompt, 12)
        same = torch.tensor(expected) == torch.tensor(written)
        assert length == int((~same).nonzero()[0]) if not same.all() else 12
    assert min(found.lengths) < 12
    assert found.mean_kl > 1e-4
    assert found.worst_percent_kl >= found.mean_kl


def test_prompts_are_spread_over_the_text() -> None:
    found = prompts(list(range(10_000)))
    assert len(found) == NUM_PROMPTS
    assert {len(each) for each in found} == {PROMPT_TOKENS}
    assert found[0][0] == 0
    assert found[-1][0] > 9_000


def test_a_text_of_a_single_prompt_gives_that_one() -> None:
    assert prompts(list(range(PROMPT_TOKENS))) == [list(range(PROMPT_TOKENS))]

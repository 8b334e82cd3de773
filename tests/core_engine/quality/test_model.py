"""The gate drives the engine's own decoder and cache: logits are those of one whole prefill, however it is cut."""

from __future__ import annotations

import pytest
import torch

from core_engine.errors import ConfigurationError
from core_engine.quality.model import PagedModel
from tests.core_engine.llm.stepping import Stepper
from tests.core_engine.quality.models import IDS, tiny_decoder


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return Stepper(tiny_decoder()).prefill(IDS)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 240, 1000])
def test_logits_are_those_of_one_prefill_in_pieces_of_a_chunk(expected: torch.Tensor, chunk: int) -> None:
    pieces = list(PagedModel(tiny_decoder(), len(IDS), chunk).logits(IDS))
    assert max(map(len, pieces)) == min(chunk, len(IDS))
    assert_close(torch.cat(pieces), expected)


@pytest.mark.parametrize("first", [0, 1, 49, 50, 51, 239])
def test_logits_from_a_position_on_are_the_last_ones(expected: torch.Tensor, first: int) -> None:
    found = torch.cat(list(PagedModel(tiny_decoder(), len(IDS), chunk=50).logits(IDS, first)))
    assert_close(found, expected[first:])


def test_a_sequence_does_not_see_what_the_one_before_left_in_the_cache(expected: torch.Tensor) -> None:
    model = PagedModel(tiny_decoder(), len(IDS), chunk=32)
    list(model.logits(IDS[::-1]))
    assert_close(torch.cat(list(model.logits(IDS))), expected)


def test_decode_rows_of_several_sequences_give_what_their_prefills_give() -> None:
    prompts, then = [IDS[:5], IDS[10:43], IDS[100:101]], IDS[200:206]
    batch = PagedModel(tiny_decoder(), 300).decode(prompts, len(then))
    rows = [batch.logits]
    for token_id in then:
        batch.append([token_id] * len(prompts))
        rows.append(batch.logits)
    for index, prompt in enumerate(prompts):
        whole = Stepper(tiny_decoder()).prefill([*prompt, *then])[len(prompt) - 1 :]
        assert_close(torch.stack([row[index] for row in rows]), whole)


def test_more_tokens_than_were_promised_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sequences of 240 tokens together, room for 112"):
        list(PagedModel(tiny_decoder(), 100).logits(IDS))

from __future__ import annotations

import torch
from torch.distributions import Categorical, kl_divergence

from core_engine.quality.scores import ReferenceRows, Scores


def rows(seed: int, spread: float = 3.0) -> torch.Tensor:
    return spread * torch.randn(9, 31, generator=torch.Generator().manual_seed(seed))


def test_kl_and_nll_are_those_of_the_distributions() -> None:
    reference, candidate, targets = rows(0), rows(1), torch.arange(9)
    found = Scores.of(ReferenceRows.of(reference), candidate, targets)
    p, q = Categorical(logits=reference), Categorical(logits=candidate)
    torch.testing.assert_close(found.kl, kl_divergence(p, q), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.reference_nll, -reference.log_softmax(-1)[range(9), targets], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.nll, -candidate.log_softmax(-1)[range(9), targets], rtol=1e-5, atol=1e-5)
    assert found.is_flipped.tolist() == (reference.argmax(-1) != candidate.argmax(-1)).tolist()


def test_the_same_model_up_to_a_constant_changes_nothing() -> None:
    found = Scores.of(ReferenceRows.of(rows(0)), rows(0) + 5, torch.arange(9))
    torch.testing.assert_close(found.kl, torch.zeros(9), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.nll, found.reference_nll, rtol=1e-5, atol=1e-5)
    assert not found.is_flipped.any()


def test_margin_is_how_much_likelier_the_top_token_is_in_nats() -> None:
    top = rows(2).softmax(-1).topk(2).values
    torch.testing.assert_close(ReferenceRows.of(rows(2)).margin, (top[:, 0] / top[:, 1]).log(), rtol=1e-4, atol=1e-4)


def test_a_logit_that_is_no_number_makes_its_row_no_number_and_no_other() -> None:
    broken = rows(1)
    broken[4, 7] = torch.nan
    found = Scores.of(ReferenceRows.of(rows(0)), broken, torch.arange(9))
    assert found.kl.isnan().tolist() == [i == 4 for i in range(9)]


def test_scores_are_joined_in_order() -> None:
    parts = [Scores.of(ReferenceRows.of(rows(i)), rows(i + 1), torch.arange(9)) for i in range(3)]
    joined = Scores.cat(parts)
    assert torch.equal(joined.kl, torch.cat([part.kl for part in parts]))
    assert len(joined.is_flipped) == 27


def test_rows_that_nothing_was_put_into_are_no_numbers() -> None:
    room, part = Scores.blank(20), Scores.of(ReferenceRows.of(rows(0)), rows(1), torch.arange(9))
    room.put(5, part)
    assert torch.equal(room.kl[5:14], part.kl)
    assert torch.equal(room.is_flipped[5:14], part.is_flipped)
    assert room.nll.isnan().tolist() == [not 5 <= i < 14 for i in range(20)]

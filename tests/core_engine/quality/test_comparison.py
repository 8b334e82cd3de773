from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.quality.comparison import Pieces, compare, compare_all
from core_engine.quality.model import PagedModel
from tests.core_engine.quality.models import IDS, Given, tiny_decoder

SEQUENCES = [IDS[:50], IDS[50:180], IDS[180:]]


def paged(noise: float = 0.0, chunk: int = 32) -> PagedModel:
    return PagedModel(tiny_decoder(noise), 256, chunk)


def random_logits(sequences: Sequence[Sequence[int]], seed: int) -> dict[tuple[int, ...], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {tuple(each[:-1]): torch.randn(len(each) - 1, 97, generator=generator) for each in sequences}


def test_a_model_is_no_different_from_itself() -> None:
    found = compare(paged(), paged(chunk=17), SEQUENCES)
    assert (found.num_tokens, found.num_sequences) == (len(IDS) - 3, 3)
    assert found.max_kl < 1e-5
    assert found.top1_agreement == 1
    assert found.nll_change == pytest.approx(0, abs=1e-6)


def test_more_noise_is_more_of_everything() -> None:
    found = compare_all(paged(), {"less": paged(0.02), "more": paged(0.2)}, SEQUENCES)
    less, more = found["less"], found["more"]
    for name in ("mean_kl", "worst_decile_kl", "worst_percent_kl", "max_kl", "worst_sequence_kl"):
        assert 0 < 2 * getattr(less, name) < getattr(more, name), name
    assert more.top1_agreement < less.top1_agreement


def test_several_candidates_in_one_pass_are_what_each_is_alone() -> None:
    found = compare_all(paged(), {"one": paged(0.02), "two": paged(0.2)}, SEQUENCES)
    assert found["one"] == compare(paged(), paged(0.02), SEQUENCES)
    assert found["two"] == compare(paged(), paged(0.2), SEQUENCES)


@given(reference=st.integers(1, 300), candidate=st.integers(1, 300))
def test_the_pieces_in_which_logits_come_change_nothing(reference: int, candidate: int) -> None:
    expected, found = random_logits(SEQUENCES, 0), random_logits(SEQUENCES, 1)
    whole = compare(Given(expected, 300), Given(found, 300), SEQUENCES)
    cut = compare(Given(expected, reference), Given(found, candidate), SEQUENCES)
    assert cut.mean_kl == pytest.approx(whole.mean_kl, rel=1e-5)
    assert (cut.top1_agreement, cut.by_position) == (whole.top1_agreement, whole.by_position)


def test_a_model_that_gives_too_few_rows_is_an_error() -> None:
    pieces = Pieces([torch.zeros(3, 5), torch.zeros(2, 5)])
    assert pieces.take(4).shape == (4, 5)
    with pytest.raises(ValueError, match="a model gave 1 rows of logits where 2 were due"):
        pieces.take(2)

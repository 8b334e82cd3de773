from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.quality.report import Bucket, TokenPlaces, buckets, report, worst_mean
from tests.core_engine.quality.models import places, scores


def test_places_say_of_each_predicted_token_where_it_is_and_how_often_it_occurs() -> None:
    found = TokenPlaces.of([[5, 6, 5], [6, 6]])
    assert found.sequence.tolist() == [0, 0, 1]
    assert found.position.tolist() == [1, 2, 1]
    assert found.occurrences.tolist() == [3, 2, 3]


@given(numbers=st.lists(st.integers(1, 200), min_size=1, max_size=50))
def test_buckets_hold_every_token_once(numbers: list[int]) -> None:
    of = torch.tensor(numbers)
    found = buckets(scores(len(numbers)), of, (1, 2, 10, 100))
    assert sum(each.num_tokens for each in found) == len(numbers)
    names = {"1": of == 1, "2-9": (of >= 2) & (of < 10), "10-99": (of >= 10) & (of < 100), "100+": of >= 100}
    assert {each.name: each.num_tokens for each in found} == {n: int(m.sum()) for n, m in names.items() if m.any()}


def test_a_change_is_certain_beyond_two_standard_errors() -> None:
    assert Bucket("", 100, 3.0, change=-0.5, error=0.1).certain_change == pytest.approx(0.3)
    assert Bucket("", 100, 3.0, change=0.1, error=0.1).certain_change == 0
    assert Bucket("", 1, 3.0, change=9.0, error=math.inf).certain_change == 0
    assert math.isnan(Bucket("", 9, 3.0, change=math.nan, error=math.nan).certain_change)


def test_the_error_of_a_bucket_is_that_of_its_mean() -> None:
    nll = scores(1000).reference_nll
    noise = 0.3 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    (bucket,) = buckets(scores(1000, nll=nll + noise), torch.ones(1000), (1,))
    assert bucket.error == pytest.approx(0.3 / math.sqrt(1000), rel=0.1)
    assert bucket.change == pytest.approx(noise.mean().item(), abs=1e-5)


@given(kl=st.lists(st.floats(0, 10, width=32), min_size=1, max_size=300))
def test_a_worse_tail_is_never_below_a_better_one(kl: list[float]) -> None:
    ranked = torch.tensor(kl).sort(descending=True).values
    means = [worst_mean(ranked, share) for share in (0.001, 0.01, 0.1, 1.0)]
    assert all(more >= less - 1e-5 for more, less in pairwise(means))
    assert means[0] == pytest.approx(max(kl), rel=1e-6)


def test_a_few_ruined_tokens_show_in_the_tail_where_the_mean_hardly_moves() -> None:
    kl = scores(4000).kl.clone()
    before = report(scores(4000), places(4000))
    kl[::80] = 0.5  # 50 of 4,000
    after = report(scores(4000, kl=kl), places(4000))
    assert after.mean_kl < 0.012
    assert after.worst_percent_kl > 45 * before.worst_percent_kl
    assert after.tail_ratio > 45 * before.tail_ratio


def test_flips_count_where_the_reference_is_sure() -> None:
    margin = torch.cat((torch.full((300,), 0.5), torch.full((100,), 1.5)))
    flipped = torch.zeros(400, dtype=torch.bool)
    flipped[:200] = True
    flipped[399] = True
    found = report(scores(margin=margin, is_flipped=flipped), places())
    assert found.top1_agreement == pytest.approx(1 - 201 / 400)
    assert found.num_confident == 100
    assert found.confident_flips == pytest.approx(0.01)


def test_the_worst_sequences_are_named() -> None:
    kl = torch.full((400,), 0.01)
    kl[200:300] = 0.05
    found = report(scores(kl=kl), places())
    (worst,) = found.worst_sequences
    assert (worst.index, worst.num_tokens) == (2, 100)
    assert worst.mean_kl == pytest.approx(0.05)
    assert found.worst_sequence_kl == pytest.approx(0.05)


def test_one_token_that_is_no_number_spoils_mean_tail_and_sequence() -> None:
    kl = scores().kl.clone()
    kl[150] = math.nan
    found = report(scores(kl=kl), places())
    for name in ("mean_kl", "worst_decile_kl", "worst_percent_kl", "max_kl", "worst_sequence_kl"):
        assert math.isnan(getattr(found, name)), name
    assert found.worst_sequences[0].index == 1

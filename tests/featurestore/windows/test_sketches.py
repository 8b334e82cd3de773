"""The sketches of a tile: order decides nothing, errors are as stated, sizes are bounded, rubbish is refused."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.codec import UnreadablePayload
from featurestore.windows import sketches
from tests.featurestore.rows import PROPERTY

SIZES = [1, 8, 9, 100, 384, 385, 2_000, 30_000]  # around where the library changes the form of a distinct sketch


@pytest.mark.parametrize("size", SIZES)
def test_the_distinct_estimate_depends_on_the_set_alone(size: int) -> None:
    rng = random.Random(size)
    estimates = set()
    for num_parts in (1, 2, 3, 7):
        texts = [f"N{i}" for i in range(size)] * 2
        rng.shuffle(texts)
        parts = [texts[i::num_parts] for i in range(num_parts)]
        halves = [sketches.with_texts(sketches.with_texts(None, p[: len(p) // 2]), p[len(p) // 2 :]) for p in parts]
        union = sketches.distinct_union(halves)
        assert union is not None
        assert len(union) < 3_000
        estimates.add(sketches.distinct_estimate(union))
    [estimate] = estimates
    assert abs(estimate - size) <= 3 * 1.04 / 2**6 * size


@PROPERTY
@given(st.lists(st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=50), min_size=1, max_size=4))
def test_up_to_two_hundred_values_a_quantile_is_the_one_of_the_sorted_list(parts: list[list[float]]) -> None:
    union = sketches.quantiles_union([sketches.with_numbers(None, part) for part in parts])
    ordered = sorted(value for part in parts for value in part)
    assert union is not None
    for rank, index in ((0.0, 0), (0.5, -(-len(ordered) // 2) - 1), (1.0, -1)):
        assert sketches.quantile(union, rank) == ordered[index]


def test_beyond_that_its_rank_is_off_by_less_than_twice_the_stated_error() -> None:
    rng = random.Random(3)
    values = [rng.gauss(0, 50) for _ in range(40_000)]
    union = sketches.quantiles_union([sketches.with_numbers(None, values[i::5]) for i in range(5)])
    assert union is not None
    assert len(union) < 6_000
    values.sort()
    for rank in (0.01, 0.25, 0.5, 0.9, 0.99):
        value = sketches.quantile(union, rank)
        below, upto = (cut(values, value) / len(values) for cut in (bisect_left, bisect_right))
        assert below - 2 * sketches.RANK_ERROR <= rank <= upto + 2 * sketches.RANK_ERROR


def test_a_number_and_its_text_are_one_value() -> None:
    assert {sketches.text_of(value) for value in (5, 5.0, "5")} == {"5"}
    assert sketches.text_of(2**60) == str(2**60)
    assert sketches.text_of(0.5) == "0.5"


def test_of_no_parts_there_is_no_sketch() -> None:
    assert sketches.distinct_union([]) is None
    assert sketches.quantiles_union([]) is None


@pytest.mark.parametrize("read", [sketches.distinct_estimate, lambda held: sketches.quantile(held, 0.5)])
@pytest.mark.parametrize("held", [b"", b"x", b"none of ours" * 9])
def test_bytes_that_are_no_sketch_are_an_unreadable_payload(read: Callable[[bytes], object], held: bytes) -> None:
    with pytest.raises(UnreadablePayload, match="bytes are no"):
        read(held)

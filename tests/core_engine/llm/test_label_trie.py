"""The label trie against brute force: what it asks for, what it makes of it, and which labels it refuses."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Normalise
from core_engine.errors import InvalidRequest
from core_engine.llm.label_trie import MAX_LABEL_TOKENS, MAX_LABELS, LabelTrie, check_labels
from tests.core_engine.llm.label_sets import Labels, NextLogprobs, label_sets, probabilities

VOCAB_SIZE = 97
BOTH = st.sampled_from(Normalise).flatmap(lambda n: st.tuples(st.just(n), label_sets(n)))


def random_model(seed: int) -> NextLogprobs:
    """Log-probabilities of all tokens after any tokens; the same tokens always have the same."""

    @cache
    def next_logprobs(prefix: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed} {prefix}")
        logits = [rng.gauss(0, 3) for _ in range(VOCAB_SIZE)]
        total = math.log(math.fsum(map(math.exp, logits)))
        return [logit - total for logit in logits]

    return next_logprobs


def ask(trie: LabelTrie, normalise: Normalise, model: NextLogprobs) -> dict[int, tuple[float, ...]]:
    """What a model says at every node of the trie's branches."""
    answers = {}
    for branch in trie.branches():
        for node in branch.nodes:
            logprobs = model(branch.path[: trie.depth(node)])
            own = [logprobs[token] for token in trie.choices(node)]
            rest = math.log(math.fsum(map(math.exp, own))) if normalise is Normalise.LABELS else 0.0
            answers[node] = tuple(value - rest for value in own)
    return answers


@given(BOTH, st.integers(0, 1000))
def test_probabilities_are_the_products_of_the_choices_on_each_path(case: tuple[Normalise, Labels], seed: int) -> None:
    normalise, labels = case
    trie, model = LabelTrie(labels, normalise), random_model(seed)
    found = trie.probabilities(ask(trie, normalise, model))
    assert found == pytest.approx(probabilities(labels, normalise, model))


@given(label_sets(Normalise.LABELS), st.integers(0, 1000))
def test_over_labels_the_probabilities_sum_to_one(labels: Labels, seed: int) -> None:
    trie = LabelTrie(labels, Normalise.LABELS)
    assert sum(trie.probabilities(ask(trie, Normalise.LABELS, random_model(seed)))) == pytest.approx(1)


@given(BOTH)
def test_branches_answer_every_deciding_node_once_with_the_fewest_sequences(case: tuple[Normalise, Labels]) -> None:
    normalise, labels = case
    trie = LabelTrie(labels, normalise)
    branches = trie.branches()
    prefixes = {label[:depth] for label in labels for depth in range(len(label))}
    least = 1 if normalise is Normalise.VOCAB else 2
    deciding = {
        prefix
        for prefix in prefixes
        if len({o[len(prefix)] for o in labels if o[: len(prefix)] == prefix and len(o) > len(prefix)}) >= least
    }
    answered = [branch.path[: trie.depth(node)] for branch in branches for node in branch.nodes]
    assert sorted(answered) == sorted(deciding)
    for branch in branches:
        depths = [trie.depth(node) for node in branch.nodes]
        assert depths == sorted(set(depths))
        assert depths[-1] == len(branch.path)
    tips = {p for p in deciding if not any(q != p and q[: len(p)] == p for q in deciding)}
    assert sorted(branch.path for branch in branches) == sorted(tips)


def test_single_token_labels_take_the_prompt_alone_and_ask_for_their_tokens_in_order() -> None:
    trie = LabelTrie(((5,), (3,), (9,)), Normalise.LABELS)
    (branch,) = trie.branches()
    assert branch.path == ()
    assert [trie.choices(node) for node in branch.nodes] == [(5, 3, 9)]


def test_a_token_that_all_labels_share_decides_nothing() -> None:
    (branch,) = LabelTrie(((4, 1), (4, 2)), Normalise.LABELS).branches()
    assert branch.path == (4,)
    assert len(branch.nodes) == 1
    (branch,) = LabelTrie(((4, 1), (4, 2)), Normalise.VOCAB).branches()
    assert len(branch.nodes) == 2


def test_a_branch_that_begins_like_another_does_not_answer_its_nodes_again() -> None:
    trie = LabelTrie(((1, 1), (1, 2), (2, 1), (2, 2)), Normalise.LABELS)
    first, second = trie.branches()
    assert (first.path, second.path) == ((1,), (2,))
    assert [trie.depth(node) for node in first.nodes] == [0, 1]
    assert [trie.depth(node) for node in second.nodes] == [1]


def refused(labels: Labels, normalise: Normalise = Normalise.LABELS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_labels(labels, normalise, VOCAB_SIZE)
    assert caught.value.field is not None
    assert caught.value.field in str(caught.value)
    assert f"expected {caught.value.expected}" in str(caught.value)
    return caught.value


@given(BOTH)
def test_labels_that_can_be_told_apart_are_accepted(case: tuple[Normalise, Labels]) -> None:
    normalise, labels = case
    check_labels(labels, normalise, VOCAB_SIZE)


@pytest.mark.parametrize("count", [0, 1, MAX_LABELS + 1])
def test_too_few_or_too_many_labels_are_refused(count: int) -> None:
    error = refused(tuple((1, index % 97, index // 97) for index in range(count)))
    assert error.field == "head.labels"
    assert error.value == f"{count} labels"


def test_one_label_has_a_probability_over_the_vocabulary_only() -> None:
    check_labels(((1,),), Normalise.VOCAB, VOCAB_SIZE)
    assert refused(((1,),)).expected == f"2 to {MAX_LABELS} with normalise = labels"


@pytest.mark.parametrize("size", [0, MAX_LABEL_TOKENS + 1])
def test_an_empty_or_overlong_label_is_refused(size: int) -> None:
    assert refused(((1,), (2,) * size)).field == "head.labels[1]"


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    error = refused(((1,), (2, token)))
    assert error.field == "head.labels[1]"
    assert error.value == [2, token]


@pytest.mark.parametrize("normalise", Normalise)
def test_a_label_that_comes_twice_is_refused(normalise: Normalise) -> None:
    error = refused(((1, 2), (3,), (1, 2)), normalise)
    assert (error.field, error.expected) == ("head.labels[2]", "another label than labels[0]")


def test_a_label_that_begins_another_is_refused_over_labels_and_scored_over_the_vocabulary() -> None:
    labels = ((1, 2), (5,), (1,))
    error = refused(labels)
    assert error.field == "head.labels[2]"
    assert "labels[0]" in str(error)
    check_labels(labels, Normalise.VOCAB, VOCAB_SIZE)
    check_labels(((1, 2), (5, 2), (1, 0)), Normalise.LABELS, VOCAB_SIZE)  # with an ending of its own it can be chosen


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), min_size=2, max_size=6, unique=True))
def test_nested_labels_are_refused_exactly_where_one_begins_another(labels: list[tuple[int, ...]]) -> None:
    is_nested = any(one != other and other[: len(one)] == one for one in labels for other in labels)
    try:
        check_labels(tuple(labels), Normalise.LABELS, VOCAB_SIZE)
    except InvalidRequest:
        assert is_nested
    else:
        assert not is_nested

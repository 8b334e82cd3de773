"""Prompt lookup against a search through everything, however the sequence came to be what it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import SamplingParams
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.prompt_lookup import LONGEST, MAX_CANDIDATES, Match, PairIndex, PromptLookup
from core_engine.llm.speculation.prompt_lookup import continuation as continuation_of
from core_engine.llm.speculation.proposer import NOTHING, Offer
from core_engine.llm.step_plan import Scheduled
from tests.core_engine.llm.tiny import request

tokens = st.lists(st.integers(0, 3), max_size=60)  # few different ones: many matches


def searched(token_ids: list[int]) -> Match | None:
    """The longest match of up to `LONGEST` last tokens among the newest places of the last two."""
    pair = token_ids[-2:]
    places = [at for at in range(len(token_ids) - 2, 0, -1) if token_ids[at - 1 : at + 1] == pair][:MAX_CANDIDATES]
    best = None
    for at in places if len(pair) == 2 else []:
        lengths = [n for n in range(2, LONGEST + 1) if n <= at + 1 and token_ids[at + 1 - n : at + 1] == token_ids[-n:]]
        if best is None or max(lengths) > best.length:
            best = Match(at + 1, max(lengths))
    return best


@given(token_ids=tokens, cuts=st.lists(st.integers(1, 7), max_size=30))
def test_a_growing_index_finds_what_a_search_through_all_of_it_finds(token_ids: list[int], cuts: list[int]) -> None:
    index, end = PairIndex(), 0
    for cut in [*cuts, len(token_ids)]:
        end = min(end + cut, len(token_ids))
        assert index.find(token_ids[:end]) == searched(token_ids[:end])


@given(token_ids=tokens.filter(bool), start=st.integers(0, 59), num_tokens=st.integers(1, 9))
def test_a_continuation_is_what_followed_and_then_itself_again(
    token_ids: list[int], start: int, num_tokens: int
) -> None:
    start = min(start, len(token_ids) - 1)
    found = continuation_of(token_ids, start, num_tokens)
    assert len(found) == num_tokens
    grown = list(token_ids)
    for token in found:  # as if the distance to the earlier place stayed the same for ever
        assert token == grown[len(grown) - (len(token_ids) - start)]
        grown.append(token)


def test_a_longer_match_goes_before_a_newer_one() -> None:
    #       the match of four ...         the match of two ...   and the end
    text = [1, 2, 3, 4, 50, 51, 9, 9, 7, 3, 4, 60, 61, 8, 8, 1, 2, 3, 4]
    assert PairIndex().find(text) == Match(4, 4)
    assert continuation_of(text, 4, 3) == [50, 51, 9]


def offered(lookup: PromptLookup, sequence: Sequence, at_most: int) -> tuple[Offer, list[int]]:
    offer = lookup.offer(sequence, at_most)
    item = Scheduled(sequence, sequence.num_uncomputed_tokens + offer.num_tokens)
    return offer, lookup.propose([item])[0] if offer.num_tokens else []


def test_what_is_offered_is_proposed_and_nothing_without_a_match() -> None:
    lookup = PromptLookup()
    sequence = Sequence(request([5, 6, 7, 8, 9, 5]), 0.0)
    assert lookup.offer(sequence, 3) == NOTHING
    sequence.token_ids.append(6)  # "5 6" again
    assert offered(lookup, sequence, 3) == (Offer(3, 2), [7, 8, 9])
    sequence.token_ids.append(7)
    assert offered(lookup, sequence, 2) == (Offer(2, 3), [8, 9])


def test_a_draft_is_cut_where_the_grammar_forbids_it_and_only_where_there_is_one() -> None:
    asked: list[list[int]] = []

    def num_allowed(_: Sequence, draft: list[int]) -> int:
        asked.append(draft)
        return 2

    lookup = PromptLookup(num_allowed)
    prompt = [1, 2, 3, 4, 5, 1, 2]
    assert offered(lookup, Sequence(request(prompt), 0.0), 4)[0].num_tokens == 4
    assert not asked
    bound = Sequence(request(prompt, sampling=SamplingParams(json_schema="{}")), 0.0)
    assert offered(lookup, bound, 4) == (Offer(2, 2), [3, 4])


def test_nothing_is_kept_of_a_sequence_that_has_ended() -> None:
    lookup, sequence = PromptLookup(), Sequence(request([1, 2, 1, 2]), 0.0)
    lookup.offer(sequence, 4)
    assert lookup.num_sequences == 1
    lookup.forget(sequence.id)
    lookup.forget("never seen")
    assert lookup.num_sequences == 0

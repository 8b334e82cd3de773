"""Guesses that a sequence goes on as it did after the same few tokens before, in its prompt or its own completion.

Where its last four, three or two tokens have stood before, what followed there is proposed; a repetition that reaches
the sequence's end is thought to go on. The index grows with the sequence: a look-up costs the new tokens and a few
candidates, whatever the context.
Source: Saxena, "Prompt Lookup Decoding", 2023, https://github.com/apoorvumang/prompt-lookup-decoding; Yang et al.,
"Inference with Reference: Lossless Acceleration of Large Language Models", 2023, section 3.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.proposer import NOTHING, Offer
from core_engine.llm.step_plan import Scheduled

LONGEST = 4  # tokens that are compared; a match of so many is taken without looking further
MAX_CANDIDATES = 16  # earlier places that are looked at, newest first


class Match(NamedTuple):
    """Where the continuation of an earlier place begins, and how many tokens before it are those of the end."""

    start: int
    length: int


class PairIndex:
    """Earlier places of each pair of adjacent tokens in one growing sequence; about 100 bytes a token."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}  # position of the second token of each pair's newest place
        self._before = array("i", [-1])  # by position: the pair's place before that, -1 for none

    def find(self, token_ids: list[int]) -> Match | None:
        """The longest match with the last tokens, of equally long ones the newest; each call's tokens go on the last's.

        None if not even the last two tokens have stood together before.
        """
        last, before = self._last, self._before
        for at in range(len(before), len(token_ids) - 1):  # not yet the last pair, which would find itself
            pair = (token_ids[at - 1], token_ids[at])
            before.append(last.get(pair, -1))
            last[pair] = at
        if len(token_ids) < 3:
            return None
        best, at = None, last.get((token_ids[-2], token_ids[-1]), -1)
        for _ in range(MAX_CANDIDATES):
            if at < 0:
                break
            length = _common(token_ids, at)
            if best is None or length > best.length:
                best = Match(at + 1, length)
                if length == LONGEST:
                    break
            at = before[at]
        return best


def _common(token_ids: list[int], at: int) -> int:
    """How many tokens up to position `at` equal the last ones, of which two are known to; at most `LONGEST`."""
    length = 2
    while length < LONGEST and length <= at and token_ids[at - length] == token_ids[-1 - length]:
        length += 1
    return length


def continuation(token_ids: list[int], start: int, num_tokens: int) -> list[int]:
    """`num_tokens` tokens from `start` on; at the end of the sequence they begin again, as in a repetition."""
    found = token_ids[start : start + num_tokens]
    period = len(found)
    return found if period == num_tokens else [found[i % period] for i in range(num_tokens)]


class PromptLookup:
    """`num_allowed` says how many of the proposed tokens, from the first on, the sequence's grammar takes."""

    turn_s = 0.0

    def __init__(self, num_allowed: Callable[[Sequence, list[int]], int] = lambda _, tokens: len(tokens)) -> None:
        self._num_allowed = num_allowed
        self._indexes: dict[str, PairIndex] = {}
        self._offered: dict[str, list[int]] = {}

    @property
    def num_sequences(self) -> int:
        """How many sequences something is kept for."""
        return len(self._indexes)

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        index = self._indexes.get(sequence.id)
        if index is None:
            index = self._indexes[sequence.id] = PairIndex()
        match = index.find(sequence.token_ids)
        if match is None:
            return NOTHING
        tokens = continuation(sequence.token_ids, match.start, at_most)
        if sequence.request.sampling.json_schema is not None:
            del tokens[self._num_allowed(sequence, tokens) :]
        self._offered[sequence.id] = tokens
        return Offer(len(tokens), match.length)

    def propose(self, items: Items[Scheduled]) -> list[list[int]]:
        return [self._offered[item.sequence.id][: item.num_drafts] for item in items]

    def forget(self, sequence_id: str) -> None:
        self._indexes.pop(sequence_id, None)
        self._offered.pop(sequence_id, None)

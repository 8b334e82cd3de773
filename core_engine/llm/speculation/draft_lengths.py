"""How many draft tokens of each sequence to verify: as many as make the most tokens per second. Pure arithmetic.

With acceptance p per token, the j-th token of a draft is taken with probability p^j. So of any number of draft tokens
those that are most likely to be taken are best, and only their number is left to be tried out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import NamedTuple

LEAST = 0.01  # probability of being taken below which a token is no draft


class Candidate(NamedTuple):
    """One sequence: the most draft tokens, and the probability that each of them is right if those before it are."""

    most: int
    acceptance: float

    def expected(self, num_drafts: int) -> float:
        """Accepted tokens of `num_drafts`, in expectation.

        Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1.
        """
        p = self.acceptance
        return float(num_drafts) if p >= 1 else p * (1 - p**num_drafts) / (1 - p)


class Costs(NamedTuple):
    """Seconds: of a step without drafts, what 0, 1, ... draft tokens add to it, each turn of a draft model."""

    step_s: float
    drafts_s: Items[float]
    turn_s: float = 0.0

    def seconds(self, lengths: Items[int]) -> float:
        """Of a step with drafts of these lengths."""
        return self.step_s + self.drafts_s[sum(lengths)] + self.turn_s * max(lengths, default=0)


class Choice(NamedTuple):
    """Draft tokens per candidate, and the tokens per second that they promise."""

    lengths: list[int]
    rate: float


def plain(costs: Costs, num_rows: int, candidates: Items[Candidate]) -> Choice:
    """No drafts at all: each of `num_rows` brings one token."""
    return Choice([0] * len(candidates), num_rows / costs.step_s if costs.step_s > 0 else math.inf)


def best(costs: Costs, num_rows: int, candidates: Items[Candidate]) -> Choice:
    """The lengths with the most expected tokens per second."""
    chosen = plain(costs, num_rows, candidates)
    longest = max((candidate.most for candidate in candidates), default=0)
    # a turn of the draft model serves everybody at once, so that their number is tried out
    for turns in range(1, longest + 1) if costs.turn_s > 0 else (longest,):
        found = _within(turns, costs, num_rows, candidates)
        chosen = found if found.rate > chosen.rate else chosen
    return chosen


def _within(turns: int, costs: Costs, num_rows: int, candidates: Items[Candidate]) -> Choice:
    """The best choice where no draft is longer than `turns`; at least one token is drafted if any may be."""
    ranked: list[tuple[float, int]] = []  # probability of being taken, candidate
    for index, (most, acceptance) in enumerate(candidates):
        taken = acceptance
        for _ in range(min(turns, most)):
            if taken < LEAST:
                break
            ranked.append((taken, index))
            taken *= acceptance
    ranked.sort(reverse=True)
    tokens, best_rate, best_count = float(num_rows), 0.0, 0
    for count, (taken, _) in enumerate(ranked, start=1):
        tokens += taken
        seconds = costs.step_s + costs.drafts_s[count] + turns * costs.turn_s
        rate = tokens / seconds if seconds > 0 else math.inf
        if rate > best_rate:
            best_rate, best_count = rate, count
    lengths = [0] * len(candidates)
    for _, index in ranked[:best_count]:
        lengths[index] += 1
    return Choice(lengths, best_rate)

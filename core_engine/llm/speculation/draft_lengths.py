"""How many draft tokens of each sequence to verify: as many as make the most tokens per second. Pure arithmetic.

With acceptance p per token, a draft of k tokens brings p + p^2 + ... + p^k more in expectation and takes k more rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import NamedTuple

ROUNDS = 4  # of the fixed point; two nearly always suffice


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

    def worthwhile(self, bar: float) -> int:
        """How many tokens, from the first on, are each right with a probability of at least `bar`."""
        if self.acceptance < bar:
            return 0
        if self.acceptance >= 1 or bar <= 0:
            return self.most
        return min(self.most, int(math.log(bar) / math.log(self.acceptance)))


class Costs(NamedTuple):
    """Seconds: of a step without drafts, of each draft token in it, of each turn in which a draft model guesses."""

    step_s: float
    row_s: float
    turn_s: float = 0.0


class Choice(NamedTuple):
    """Draft tokens per candidate, and the tokens per second that they promise."""

    lengths: list[int]
    rate: float


def plain(costs: Costs, num_rows: int, candidates: Items[Candidate]) -> Choice:
    """No drafts at all: each of `num_rows` brings one token."""
    return Choice([0] * len(candidates), num_rows / costs.step_s if costs.step_s > 0 else math.inf)


def best(costs: Costs, num_rows: int, candidates: Items[Candidate]) -> Choice:
    """The lengths with the most expected tokens per second.

    Source: Dinkelbach, "On Nonlinear Fractional Programming", 1967: what pays at the best rate is what makes it.
    """
    chosen = plain(costs, num_rows, candidates)
    longest = max((candidate.most for candidate in candidates), default=0)
    # a turn of the draft model serves everybody at once, so that its number is tried out
    for turns in range(1, longest + 1) if costs.turn_s > 0 else (longest,):
        found = _within(turns, chosen, costs, num_rows, candidates)
        chosen = found if found.rate > chosen.rate else chosen
    return chosen


def _within(turns: int, start: Choice, costs: Costs, num_rows: int, candidates: Items[Candidate]) -> Choice:
    """The fixed point of the rate where no draft is longer than `turns`, from the rate of `start` on."""
    chosen = start
    for _ in range(ROUNDS):
        lengths = [min(turns, candidate.worthwhile(chosen.rate * costs.row_s)) for candidate in candidates]
        tokens = num_rows + sum(c.expected(n) for c, n in zip(candidates, lengths, strict=True) if n)
        seconds = costs.step_s + costs.row_s * sum(lengths) + costs.turn_s * max(lengths, default=0)
        rate = tokens / seconds if seconds > 0 else math.inf
        if rate <= chosen.rate:
            break
        chosen = Choice(lengths, rate)
    return chosen

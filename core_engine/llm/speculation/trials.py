"""Steps with other lengths than those thought best, so that it would be noticed if they were better by now.

A trial may lose time against the best lengths. A small share of all time may be lost so, as far as is known: what is
nearly as good is tried often, what is bad seldom.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from core_engine.llm.speculation.draft_lengths import Candidate, Choice, Costs, best

SHARE = 0.005  # of the time of steps without drafts
FIRST_STEPS = 2.0  # what may be lost to begin with, in steps: nothing is known
LEAST_LOSS, MOST_LOSS = 0.05, 1.0  # of a trial, in steps: what is thought may be all wrong, so none is put off for ever
LEAST_ROWS = 4  # fewer would teach little: what they take is lost in what steps differ by anyway


class Trials:
    def __init__(self) -> None:
        self._budget_steps = FIRST_STEPS
        self._num_made = 0

    def lengths(self, chosen: Choice, costs: Costs, num_rows: int, candidates: Items[Candidate]) -> list[int]:
        """The chosen lengths, or others if it is time to try some."""
        self._budget_steps += SHARE
        if self._budget_steps < LEAST_LOSS or costs.step_s <= 0:
            return chosen.lengths
        lengths = self._others(chosen, costs, num_rows, candidates)
        tokens = num_rows + sum(each.expected(length) for each, length in zip(candidates, lengths, strict=True))
        lost_steps = (costs.seconds(lengths) - tokens / chosen.rate) / costs.step_s
        lost_steps = min(max(lost_steps, LEAST_LOSS), MOST_LOSS)
        if self._budget_steps < lost_steps:
            return chosen.lengths
        self._budget_steps -= lost_steps
        self._num_made += 1
        return lengths

    def _others(self, chosen: Choice, costs: Costs, num_rows: int, candidates: Items[Candidate]) -> list[int]:
        """Short drafts for everybody instead of none; instead of some none, or in turn what cheaper rows would ask for.

        Steps without show what drafts take, those with longer ones whether further rows take less than is thought.
        """
        if not any(chosen.lengths):
            length = -(-LEAST_ROWS // len(candidates))
            return [min(length, candidate.most) for candidate in candidates]
        if self._num_made % 2:
            return [0] * len(candidates)
        cheaper = costs._replace(drafts_s=[seconds / 2 for seconds in costs.drafts_s])
        return best(cheaper, num_rows, candidates).lengths

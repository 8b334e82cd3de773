"""Drafts that are right with a given probability, whatever the model says: for benchmarks, never by a request.

What comes out is no text. Steps take as long as real ones, so that the batch size at which speculation stops paying can
be measured for each acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from core_engine.errors import ConfigurationError
from core_engine.llm.draws import uniform
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.proposer import Offer
from core_engine.llm.step_plan import Scheduled


class SyntheticAcceptance:
    """Both sides of it: the proposer, and the judge that the sampler asks instead of comparing tokens."""

    turn_s = 0.0

    def __init__(self, probability: float) -> None:
        if not 0 <= probability <= 1:
            raise ConfigurationError(f"synthetic acceptance is {probability!r}, expected a probability in [0, 1]")
        self.probability = probability

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        return Offer(at_most)

    def propose(self, items: Items[Scheduled]) -> list[list[int]]:
        return [[item.sequence.token_ids[-1]] * item.num_drafts for item in items]

    def accepts(self, sequence: Sequence, position: int) -> bool:
        """Whether a draft token at this place of the completion is right: each with the same probability."""
        return uniform(sequence.id.encode()[:64], position) < self.probability

    def forget(self, sequence_id: str) -> None:
        """Nothing is kept."""

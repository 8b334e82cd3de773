"""How likely is the next draft token right? Learnt online, per sequence and for all guesses of a kind."""

from __future__ import annotations

from dataclasses import dataclass

PRIOR = 0.5  # before anything is known of a kind
KIND_WEIGHT = 8.0  # tokens that the prior counts for in a kind's own estimate,
SEQUENCE_WEIGHT = 25.0  # and a kind's estimate in a sequence's
KIND_MEMORY = 0.998  # what a kind's counts keep per token tested: it remembers some 500 tokens,
SEQUENCE_MEMORY = 0.98  # a sequence some 50


@dataclass(slots=True)
class Tally:
    """Draft tokens that were put to the test, and those that passed; both fade."""

    accepted: float = 0.0
    tested: float = 0.0

    def add(self, accepted: int, tested: int, memory: float) -> None:
        kept = memory**tested
        self.accepted = self.accepted * kept + accepted
        self.tested = self.tested * kept + tested

    def estimate(self, prior: float, weight: float) -> float:
        """The mean of a Beta posterior whose prior has this mean and counts for `weight` tokens."""
        return (self.accepted + weight * prior) / (self.tested + weight)


class Acceptance:
    """A draft is tested up to its first wrong token, so that is what is counted: not what comes after it."""

    def __init__(self) -> None:
        self._kinds: dict[int, Tally] = {}
        self._sequences: dict[str, Tally] = {}

    @property
    def num_sequences(self) -> int:
        """How many sequences something is kept for."""
        return len(self._sequences)

    def estimate(self, sequence_id: str, kind: int) -> float:
        """The probability that the next draft token is right, given that those before it were."""
        known = self._kinds.get(kind)
        prior = PRIOR if known is None else known.estimate(PRIOR, KIND_WEIGHT)
        own = self._sequences.get(sequence_id)
        return prior if own is None else own.estimate(prior, SEQUENCE_WEIGHT)

    def observe(self, sequence_id: str, kind: int, num_drafts: int, num_accepted: int) -> None:
        tested = min(num_drafts, num_accepted + 1)
        self._kinds.setdefault(kind, Tally()).add(num_accepted, tested, KIND_MEMORY)
        self._sequences.setdefault(sequence_id, Tally()).add(num_accepted, tested, SEQUENCE_MEMORY)

    def forget(self, sequence_id: str) -> None:
        self._sequences.pop(sequence_id, None)

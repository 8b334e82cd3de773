"""What speculation asks of whoever guesses a sequence's next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import Scheduled


class Offer(NamedTuple):
    """How many tokens can be guessed, and what kind of guess it is: guesses of one kind are right about as often."""

    num_tokens: int
    kind: int = 0


NOTHING = Offer(0)


class Proposer(Protocol):
    """`offer` is asked for each decoding sequence before each step, `propose` only once the step is planned."""

    @property
    def turn_s(self) -> float:
        """Seconds in which it guesses one more token of everybody, as far as it knows; 0 if that takes no time."""
        ...

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        """How many of the tokens after the sequence's last one it could guess now, `at_most` of them. Cheap."""
        ...

    def propose(self, items: Items[Scheduled]) -> list[list[int]]:
        """For each item up to `num_drafts` tokens, all of them offered just before; fewer where it could not."""
        ...

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended."""
        ...

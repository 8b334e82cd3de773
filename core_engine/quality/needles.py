"""A fact somewhere in a long text, asked for at its end: what a smaller precision forgets, by depth and length.

Averages do not see this: a cache that loses one token in a hundred changes them little. Only cases that the reference
itself recalls are judged, where each token of the answer is its likeliest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch

from core_engine.errors import ConfigurationError
from core_engine.quality.model import Model

LENGTHS = (256, 512, 1024, 2048)  # tokens, answer included
DEPTHS = (0.1, 0.5, 0.9)  # share of the text before the fact
FACTS = (
    ("The password of the lighthouse is", " 48213"),
    ("The colour of the second envelope is", " turquoise"),
    ("The phone number of the bakery is", " 730 5591"),
    ("The name of the captain's dog is", " Marmaduke"),
    ("The room of the night porter is", " 6147"),
    ("The favourite instrument of the mayor is", " the bassoon"),
)
MIN_LENGTH = 128  # fact and question take up to 40
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Needle:
    length: int
    depth: float
    token_ids: list[int]
    answer_tokens: int  # the last ones


@dataclass(frozen=True, slots=True)
class NeedleCase:
    """Log-probabilities of the whole answer, in nats; `is_recalled`: by the reference, `is_kept`: by the candidate."""

    length: int
    depth: float
    reference_logprob: float
    logprob: float
    is_recalled: bool
    is_kept: bool

    @property
    def drop(self) -> float:
        return self.reference_logprob - self.logprob


@dataclass(frozen=True, slots=True)
class NeedleReport:
    cases: tuple[NeedleCase, ...]

    @property
    def recalled(self) -> tuple[NeedleCase, ...]:
        return tuple(case for case in self.cases if case.is_recalled)

    @property
    def worst_drop(self) -> float | None:
        """The most nats that a recalled answer lost; None if the reference recalls nothing."""
        drops = torch.tensor(
            [case.drop for case in self.recalled], dtype=torch.float64
        )  # its maximum with a NaN is NaN
        return drops.max().item() if len(drops) else None

    @property
    def kept(self) -> float | None:
        """Share of the recalled cases that the candidate recalls as well; None likewise."""
        recalled = self.recalled
        return sum(case.is_kept for case in recalled) / len(recalled) if recalled else None


def needles(encode: Encode, text: Sequence[int], max_context: int) -> list[Needle]:
    """One for each length that fits `max_context` and each depth, around `text`'s own tokens.

    Raises:
        ConfigurationError: if the text is shorter than the shortest of them.
    """
    room = min(max_context, len(text))
    lengths = [length for length in LENGTHS if length <= room] or [room]
    if lengths[0] < MIN_LENGTH:
        raise ConfigurationError(f"text and context have room for {room} tokens, a needle needs {MIN_LENGTH}")
    facts = cycle(FACTS)
    return [_needle(encode, text, length, depth, *next(facts)) for length in lengths for depth in DEPTHS]


def recall(reference: Model, candidate: Model, cases: Sequence[Needle]) -> NeedleReport:
    return NeedleReport(tuple(_case(reference, candidate, case) for case in cases))


def _needle(encode: Encode, text: Sequence[int], length: int, depth: float, question: str, answer: str) -> Needle:
    fact, asked, answered = encode(f" {question}{answer}.\n\n"), encode(f"\n\n{question}"), encode(answer)
    filler = list(text[: length - len(fact) - len(asked) - len(answered)])
    at = int(depth * len(filler))
    return Needle(length, depth, [*filler[:at], *fact, *filler[at:], *asked, *answered], len(answered))


def _case(reference: Model, candidate: Model, needle: Needle) -> NeedleCase:
    expected, is_recalled = _answer(reference, needle)
    found, is_kept = _answer(candidate, needle)
    return NeedleCase(needle.length, needle.depth, expected, found, is_recalled, is_kept)


def _answer(model: Model, needle: Needle) -> tuple[float, bool]:
    """The answer's log-probability, and whether each of its tokens is the likeliest."""
    first = len(needle.token_ids) - needle.answer_tokens - 1
    logits = torch.cat(list(model.logits(needle.token_ids[:-1], first)))
    answer = torch.tensor(needle.token_ids[first + 1 :])
    logprobs = logits.log_softmax(-1).gather(1, answer[:, None])
    return logprobs.sum().item(), bool((logits.argmax(-1) == answer).all())

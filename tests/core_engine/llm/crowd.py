"""Sequences of tokens that are told beforehand, run together, every step of them drawn at random.

Prefill chunks of any size run beside decode rows and spans to verify, some with a wrong draft at their end; a sequence
goes on in a copy that shares its full blocks, or is begun again in other blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tests.core_engine.llm.stepping import Stepper

LONGEST_WRONG = 3  # tokens of a draft that nobody accepts


class Script(NamedTuple):
    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


def script(num_prompt: int, num_answer: int, seed: int = 0, vocab: int = 97) -> Script:
    draws = random.Random(seed)
    tokens = [draws.randrange(vocab) for _ in range(num_prompt + num_answer)]
    return Script(tokens[:num_prompt], tokens[num_prompt:])


def alone(steps: Stepper, told: Script) -> torch.Tensor:
    """Logits of every token, [num_tokens, vocab]: a whole prefill, then token by token."""
    sequence = steps.sequence(told.prompt)
    rows = steps.step((sequence, len(told.prompt)))
    return torch.cat([*rows, *(steps.decode(sequence, token)[None] for token in told.answer)])


def crowd(steps: Stepper, scripts: Sequence[Script], seed: int) -> list[torch.Tensor]:
    """The same of each script, run together; the steps are those of `seed`."""
    draws = random.Random(seed)
    everybody = [_Member(steps, told, draws) for told in scripts]
    while running := [member for member in everybody if not member.is_done]:
        for member in running:
            member.move()
        work = [(member, num_rows) for member in running if (num_rows := member.next_rows()) > 0]
        work.sort(key=lambda each: each[1] > 1)  # decode rows come first
        if work:
            logits = steps.step(*((member.sequence, num_rows) for member, num_rows in work))
            for (member, _), rows in zip(work, logits, strict=True):
                member.take(rows)
    return [torch.stack([member.rows[position] for position in sorted(member.rows)]) for member in everybody]


class _Member:
    """One script on its way, and its logits by position, as they came last."""

    def __init__(self, steps: Stepper, told: Script, draws: random.Random) -> None:
        self.rows: dict[int, torch.Tensor] = {}
        self.sequence = steps.sequence(told.prompt, len(told.answer) + LONGEST_WRONG)
        self._steps, self._told, self._draws = steps, told, draws
        self._num_wrong = 0

    @property
    def is_done(self) -> bool:
        return self.sequence.num_computed_tokens == len(self._told.tokens)

    def move(self) -> None:
        """Now and then: on in a copy, or all over again."""
        chance = self._draws.random()
        if chance < 0.1:
            self.sequence = self._steps.copy(self.sequence)
        elif chance < 0.13:
            so_far = self.sequence.token_ids
            self.sequence = self._steps.sequence(self._told.prompt, len(self._told.answer) + LONGEST_WRONG)
            self.sequence.token_ids = so_far

    def next_rows(self) -> int:
        """How many rows it has in the next step; 0: it sits out. A computed one gets tokens first."""
        if self._draws.random() < 0.2:
            return 0
        if left := self.sequence.num_uncomputed_tokens:
            return self._draws.randint(1, min(left, 24))
        told = self._told.tokens[self.sequence.num_tokens :][: self._draws.choice((1, 1, 2, 5))]
        self._num_wrong = self._draws.choice((0, 0, LONGEST_WRONG))
        self.sequence.token_ids += told + [self._draws.randrange(97) for _ in range(self._num_wrong)]
        return len(told) + self._num_wrong

    def take(self, logits: torch.Tensor) -> None:
        """Note them, and take a wrong draft back; what it left in the cache will be overwritten."""
        start, wrong = self.sequence.num_computed_tokens - len(logits), self._num_wrong
        for position, row in enumerate(logits[: len(logits) - wrong], start):
            self.rows[position] = row
        if wrong:
            del self.sequence.token_ids[-wrong:]
            self.sequence.num_computed_tokens -= wrong
        self._num_wrong = 0

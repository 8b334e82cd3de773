"""A small model guesses: it runs ahead of the large one, token by token, with a KV cache of its own.

It needs the large one's vocabulary. What it has computed and the large one did not take is overwritten the next time it
guesses; tokens that it has not seen yet, a prompt's or those of plain steps, are computed then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from core_engine.llm.model_decoder import AnyDecoder
from core_engine.llm.sampler import Sampler
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.proposer import NOTHING, Offer
from core_engine.llm.step_plan import Scheduled
from core_engine.llm.step_rows import Span, StepRows

MAX_CATCH_UP = 256  # tokens of one sequence that are computed before a guess; with more to do it makes none
MEMORY = 0.9  # of what a turn takes, per turn


class _Part(NamedTuple):
    """Tokens of one sequence to be computed, from `position` on."""

    sequence: Sequence
    tokens: list[int]
    position: int


@dataclass(slots=True)
class _Ahead:
    """One sequence as the draft model knows it: its first `num_known` tokens, and then `guessed` ones, are computed."""

    block_table: list[int] = field(default_factory=list)
    num_known: int = 0
    guessed: list[int] = field(default_factory=list)

    def agree(self, token_ids: list[int]) -> None:
        """Of what it guessed, keep what came to be; the last token is always computed again, for what follows it."""
        for token in self.guessed:
            if self.num_known >= len(token_ids) - 1 or token_ids[self.num_known] != token:
                break
            self.num_known += 1
        self.num_known = min(self.num_known, len(token_ids) - 1)
        self.guessed.clear()


class DraftModel:
    """`num_blocks` of its own KV cache; a sequence that finds none gets no drafts."""

    def __init__(
        self,
        decoder: AnyDecoder,
        sampler: Sampler,
        num_blocks: int,
        block_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.decoder = decoder
        self.turn_s = 0.0
        self._sampler = sampler
        self._cache = decoder.new_cache(num_blocks, block_size)
        self._block_size = block_size
        self._free = list(range(1, num_blocks))  # block 0 is padding
        self._ahead: dict[str, _Ahead] = {}
        self._clock = clock

    @property
    def num_sequences(self) -> int:
        """How many sequences something is kept for."""
        return len(self._ahead)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        held = self._ahead.get(sequence.id)
        missing = self._missing(held.block_table if held else [], sequence.num_tokens + at_most)
        return Offer(at_most) if missing <= len(self._free) else NOTHING

    @torch.inference_mode()
    def propose(self, items: Items[Scheduled]) -> list[list[int]]:
        drafts: dict[str, list[int]] = {item.sequence.id: [] for item in items}
        wanted = {item.sequence.id: item.num_drafts for item in items}
        turn = [part for item in items if (part := self._catch_up(item)) is not None]
        turn.sort(key=lambda part: len(part.tokens))  # single rows go first
        while turn:
            for part, guess in zip(turn, self._guess(turn), strict=True):
                drafts[part.sequence.id].append(guess)
            turn = [
                self._next(part, drafts[name]) for part in turn if len(drafts[name := part.sequence.id]) < wanted[name]
            ]
        return [drafts[item.sequence.id] for item in items]

    def forget(self, sequence_id: str) -> None:
        held = self._ahead.pop(sequence_id, None)
        if held is not None:
            self._free += held.block_table

    def _catch_up(self, item: Scheduled) -> _Part | None:
        """The tokens that the sequence has got meanwhile, to be computed; None if it cannot be guessed this time."""
        sequence = item.sequence
        ahead = self._ahead.setdefault(sequence.id, _Ahead())
        missing = self._missing(ahead.block_table, sequence.num_tokens + item.num_drafts)
        if missing > len(self._free):
            return None
        ahead.block_table += [self._free.pop() for _ in range(missing)]
        ahead.agree(sequence.token_ids)
        part = _Part(sequence, sequence.token_ids[ahead.num_known :], ahead.num_known)
        if len(part.tokens) > MAX_CATCH_UP:
            self._forward([part._replace(tokens=part.tokens[:MAX_CATCH_UP])])
            ahead.num_known += MAX_CATCH_UP
            return None
        ahead.num_known = sequence.num_tokens
        return part

    def _next(self, part: _Part, draft: list[int]) -> _Part:
        self._ahead[part.sequence.id].guessed.append(draft[-1])
        return _Part(part.sequence, draft[-1:], part.sequence.num_tokens + len(draft) - 1)

    def _guess(self, turn: list[_Part]) -> list[int]:
        """The token after each part."""
        start_s = self._clock()
        logits = self.decoder.logits(self._forward(turn))
        guesses = self._sampler.guess(logits, [(p.sequence, p.position + len(p.tokens)) for p in turn])
        if sum(len(part.tokens) for part in turn) <= 2 * len(turn):  # the usual kind, nobody catches up with a prompt
            took_s = self._clock() - start_s
            self.turn_s = MEMORY * self.turn_s + (1 - MEMORY) * took_s if self.turn_s else took_s
        return guesses

    def _forward(self, parts: list[_Part]) -> torch.Tensor:
        """Final hidden states [num_parts, hidden] of their last tokens."""
        rows = StepRows([], [], [])
        for part in parts:
            table = self._ahead[part.sequence.id].block_table
            rows.spans.append(Span(part.position, len(part.tokens), table, part.sequence.num_prompt_tokens))
            rows.token_ids.extend(part.tokens)
            rows.output_rows.append(len(rows.token_ids) - 1)
        return self.decoder.forward(rows, self._cache)

    def _missing(self, block_table: list[int], num_tokens: int) -> int:
        """Blocks that a table lacks to hold so many tokens."""
        return max(0, -(-num_tokens // self._block_size) - len(block_table))

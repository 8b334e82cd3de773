"""Tiny engines that speculate, and a proposer that knows what comes: drafts as right or wrong as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items

from core_engine.llm.engine import Engine
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.speculation.prompt_lookup import PromptLookup
from core_engine.llm.speculation.proposer import Offer, Proposer
from core_engine.llm.step_plan import Scheduled


class Oracle:
    """Proposes what `completions` say by attempt id; every `wrong_every`-th place of a completion it gets wrong."""

    turn_s = 0.0

    def __init__(self, completions: Mapping[str, Items[int]], wrong_every: int = 0) -> None:
        self._completions = completions
        self._wrong_every = wrong_every

    def offer(self, sequence: Sequence, at_most: int) -> Offer:
        return Offer(len(self._next(sequence, at_most)))

    def propose(self, items: Items[Scheduled]) -> list[list[int]]:
        return [self._next(item.sequence, item.num_drafts) for item in items]

    def forget(self, sequence_id: str) -> None:
        """Nothing is kept."""

    def _next(self, sequence: Sequence, num_tokens: int) -> list[int]:
        start = sequence.num_completion_tokens
        tokens = list(self._completions.get(sequence.id, ())[start : start + num_tokens])
        for index in range(len(tokens)):
            if self._wrong_every and (start + index) % self._wrong_every == 0:
                tokens[index] = (tokens[index] + 1) % 90
        return tokens


def speculate(
    engine: Engine, proposer: Proposer | None = None, max_tokens: int = 4, *, is_adaptive: bool = False
) -> Speculation:
    """Let an engine speculate, always unless it `is_adaptive`; without a proposer by prompt lookup."""
    proposer = proposer or PromptLookup(engine.runner.sampler.num_allowed)
    engine.scheduler.speculation = Speculation(proposer, max_tokens, is_adaptive=is_adaptive)
    return engine.scheduler.speculation

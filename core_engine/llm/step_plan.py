"""What the scheduler decides for one step: which tokens of which sequences, and what has to happen before them."""

from __future__ import annotations

import math

from core_engine.contracts import Pool
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import StepShape, StepTime

NO_TOKENS: list[int] = []  # nobody adds to it: a draft is set as a whole


class Scheduled:
    """`num_tokens` of a sequence from its first uncomputed one on. `cost_s`: what they add to the step's time.

    Those past the sequence's last known token are a `draft` of what may follow; it is filled in before the run.
    """

    __slots__ = ("cost_s", "draft", "num_new", "num_tokens", "sequence")

    def __init__(self, sequence: Sequence, num_tokens: int, cost_s: float = 0.0) -> None:
        self.sequence = sequence
        self.num_tokens = num_tokens
        self.cost_s = cost_s
        self.draft: list[int] = NO_TOKENS
        self.num_new = 0  # tokens that the sequence got by it; known after the commit

    @property
    def samples(self) -> bool:
        """It reaches the last known token."""
        return self.num_tokens >= self.sequence.num_uncomputed_tokens

    @property
    def num_drafts(self) -> int:
        """How many of its tokens are a draft. Up to the commit."""
        return max(0, self.num_tokens - self.sequence.num_uncomputed_tokens)

    @property
    def num_outputs(self) -> int:
        """How many of its rows, the last ones, somebody wants the hidden state of."""
        sequence = self.sequence
        end = sequence.num_computed_tokens + self.num_tokens
        return max(0, end - max(sequence.num_computed_tokens, sequence.first_output))


class StepPlan:
    """Grows while the scheduler fills it. `cap_s` and `tokens_left` bound what may still go in."""

    __slots__ = (
        "attended_pairs",
        "bulk_cap_s",
        "bulk_tokens_left",
        "cap_s",
        "chunks",
        "copies",
        "decode_context_tokens",
        "decodes",
        "drafts_s",
        "expired",
        "ids",
        "lifted",
        "now",
        "num_drafts",
        "preempted",
        "prefill_tokens",
        "step_time",
        "tokens_left",
        "variable_s",
    )

    def __init__(self, step_time: StepTime, max_tokens: int, cap_s: float = math.inf, now: float = 0.0) -> None:
        self.step_time = step_time
        self.tokens_left = max_tokens
        self.cap_s = cap_s
        self.now = now
        self.bulk_cap_s, self.bulk_tokens_left = math.inf, max_tokens  # of this step, for more of bulk's tokens
        self.decodes: list[Scheduled] = []
        self.chunks: list[Scheduled] = []
        self.expired: list[Sequence] = []  # ended before this step, with their reason
        self.preempted: list[Sequence] = []  # lost their blocks and begin again
        self.copies: list[tuple[int, int]] = []  # (block, its copy), to be made before the run
        self.ids: set[str] = set()  # of the sequences in it
        self.lifted = False  # starved bulk came first: its chunks may be extended once all others are in
        self.variable_s = 0.0
        self.num_drafts = 0  # tokens in all drafts
        self.drafts_s = 0.0  # part of it: what drafts add, their making included
        self.prefill_tokens = self.decode_context_tokens = self.attended_pairs = 0

    @property
    def scheduled(self) -> list[Scheduled]:
        """Decode rows first, then chunks."""
        return self.decodes + self.chunks

    @property
    def is_empty(self) -> bool:
        return not (self.decodes or self.chunks)

    @property
    def predicted_s(self) -> float:
        return 0.0 if self.is_empty else self.step_time.a + self.variable_s

    @property
    def room_s(self) -> float:
        """Seconds left under the cap for what is not yet in it."""
        return self.cap_s - self.step_time.a - self.variable_s

    @property
    def shape(self) -> StepShape:
        """Without drafts, whose time is not the step-time model's: see `speculation.control`."""
        return StepShape(
            prefill_tokens=self.prefill_tokens,
            decode_rows=len(self.decodes),
            decode_context_tokens=self.decode_context_tokens,
            attended_pairs=self.attended_pairs,
            sequences=len(self.decodes) + len(self.chunks),
        )

    def add_decode(self, sequence: Sequence, cost_s: float) -> None:
        self.decodes.append(Scheduled(sequence, 1, cost_s))
        self.ids.add(sequence.id)
        self.tokens_left -= 1
        self.variable_s += cost_s
        self.decode_context_tokens += len(sequence.token_ids)

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        self.chunks.append(Scheduled(sequence, 0))
        self.ids.add(sequence.id)
        self.extend(self.chunks[-1], num_tokens)

    def add_draft(self, item: Scheduled, num_tokens: int, cost_s: float) -> None:
        """A decode row is followed by a draft, whose tokens come with `set_draft`."""
        item.num_tokens += num_tokens
        self._charge_draft(item, cost_s)
        self.num_drafts += num_tokens
        self.tokens_left -= num_tokens
        if item.sequence.pool is Pool.BULK:
            self.bulk_tokens_left -= num_tokens

    def add_turns(self, turn_s: float) -> None:
        """All drafts are added: what a draft model takes to make them, `turn_s` for each token of the longest one."""
        if self.num_drafts:
            items = [item for item in self.decodes if item.num_drafts]
            self.decodes.sort(key=lambda item: item.num_tokens)  # single rows go first
            share_s = turn_s * max(item.num_drafts for item in items) / len(items)
            for item in items:
                self._charge_draft(item, share_s)

    def set_draft(self, item: Scheduled, tokens: list[int]) -> None:
        """The tokens of a draft, perhaps fewer than were added."""
        self.num_drafts -= item.num_drafts - len(tokens)
        item.draft = tokens
        item.num_tokens = 1 + len(tokens)

    def _charge_draft(self, item: Scheduled, cost_s: float) -> None:
        item.cost_s += cost_s
        self.variable_s += cost_s
        self.drafts_s += cost_s

    def extend(self, item: Scheduled, num_tokens: int) -> None:
        """Let a chunk go on for `num_tokens` more."""
        context = item.sequence.num_computed_tokens + item.num_tokens
        cost_s = self.step_time.chunk_cost(context, num_tokens)
        item.num_tokens += num_tokens
        item.cost_s += cost_s
        self.tokens_left -= num_tokens
        self.variable_s += cost_s
        self.prefill_tokens += num_tokens
        self.attended_pairs += num_tokens * context + num_tokens * (num_tokens + 1) // 2

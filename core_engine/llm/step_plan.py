"""What the scheduler decides for one step: which tokens of which sequences, and what has to happen before them."""

from __future__ import annotations

import math

from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import StepShape, StepTime


class Scheduled:
    """`num_tokens` of a sequence from its first uncomputed one on. `cost_s`: what they add to the step's time."""

    __slots__ = ("cost_s", "num_tokens", "sequence")

    def __init__(self, sequence: Sequence, num_tokens: int, cost_s: float = 0.0) -> None:
        self.sequence = sequence
        self.num_tokens = num_tokens
        self.cost_s = cost_s

    @property
    def samples(self) -> bool:
        """It reaches the last known token."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens

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
        "cap_s",
        "chunks",
        "copies",
        "decode_context_tokens",
        "decodes",
        "expired",
        "ids",
        "lifted",
        "now",
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
        self.decodes: list[Scheduled] = []
        self.chunks: list[Scheduled] = []
        self.expired: list[Sequence] = []  # ended before this step, with their reason
        self.preempted: list[Sequence] = []  # lost their blocks and begin again
        self.copies: list[tuple[int, int]] = []  # (block, its copy), to be made before the run
        self.ids: set[str] = set()  # of the sequences in it
        self.lifted = False  # starved bulk came first: its chunks may be extended once all others are in
        self.variable_s = 0.0
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

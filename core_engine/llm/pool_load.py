"""What an engine tells of one class of its work, for `admission` to predict from. No torch."""

from __future__ import annotations

import math
from collections.abc import Collection

from core_engine.llm.messages import PoolLoad
from core_engine.llm.sequence import Sequence
from core_engine.llm.waiting_queue import WaitingQueue

REMEMBERED = 64  # finished sequences, about: each counts a little less than the one after it
RECENT_S = 3.0  # time constant of what `PrefillShare` remembers


class CompletionRatio:
    """Completion tokens of finished sequences as a share of what they might have had; 1 until there is one.

    Each is summed, so that a request for one token, which always brings all of it, says as little as it should.
    """

    def __init__(self) -> None:
        self._brought = self._allowed = 0.0

    def observe(self, completion_tokens: int, max_tokens: int) -> None:
        """Take a sequence that ended by itself; one that was aborted or late says nothing of its length."""
        fade = 1 - 1 / REMEMBERED
        self._brought = self._brought * fade + completion_tokens
        self._allowed = self._allowed * fade + max_tokens

    @property
    def value(self) -> float:
        return self._brought / self._allowed if self._allowed else 1.0


class PrefillShare:
    """The part of recent time that went to prompts of one class: what those that come next are likely to take."""

    def __init__(self) -> None:
        self._prefill_s = self._time_s = 0.0
        self._at_s = math.nan

    def observe(self, now_s: float, prefill_s: float) -> None:
        """A step that ended at `now_s` spent `prefill_s` on prompts; what lies between two steps counts as time."""
        if math.isnan(self._at_s):  # nobody knows how long the first one took
            self._at_s = now_s
            return
        self._fade(now_s)
        self._prefill_s += prefill_s

    def at(self, now_s: float) -> float:
        """The share as it stands at `now_s`, not before the last step: it fades while no step runs."""
        if math.isnan(self._at_s):
            return 0.0
        self._fade(now_s)
        return min(1.0, self._prefill_s / self._time_s) if self._time_s else 0.0

    def _fade(self, now_s: float) -> None:
        """Age both sums by the time since the last look, which is itself part of the time."""
        passed_s = max(0.0, now_s - self._at_s)
        kept = math.exp(-passed_s / RECENT_S)
        self._prefill_s *= kept
        self._time_s = self._time_s * kept + passed_s
        self._at_s += passed_s


def load_of(
    waiting: WaitingQueue,
    running: Collection[Sequence],
    *,
    max_seats: int,
    completion_ratio: float,
    prefill_share: float,
) -> PoolLoad:
    """The load that these sequences are; the queue keeps its own sums, each in a seat is looked at once."""
    prefill_tokens = decode_rows = context = 0
    pairs, left = waiting.num_pairs, waiting.max_completion_tokens
    for sequence in running:
        left += sequence.max_completion_tokens - sequence.num_completion_tokens
        if sequence.is_decoding:
            decode_rows += 1
            context += sequence.num_tokens
        else:
            prefill_tokens += sequence.num_uncomputed_tokens
            pairs += _pairs(sequence)
    return PoolLoad(
        waiting=len(waiting),
        waiting_tokens=waiting.num_tokens,
        running=len(running),
        prefill_tokens=prefill_tokens,
        decode_rows=decode_rows,
        decode_context_tokens=context,
        pairs_left=pairs,
        completion_tokens_left=left,
        completion_ratio=completion_ratio,
        prefill_share=prefill_share,
        max_seats=max_seats,
    )


def _pairs(sequence: Sequence) -> int:
    new = sequence.num_uncomputed_tokens
    return new * sequence.num_computed_tokens + new * (new + 1) // 2

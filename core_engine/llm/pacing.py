"""How long may the next step be, so that requests stay within their objective, and what is left for bulk?

The objective is a slow-down: time to first token and time per output token as multiples of what a request has when it
is alone. A request that is ahead of it can wait for a longer step; what the most urgent one can spare is what bulk may
use. Pure arithmetic on the step-time model; the scheduler asks once or twice per step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import StepTime

WINDOW = 64  # prompts that are remembered
QUANTILE = 0.25  # of them, how many may be shorter than the one that is thought of as the next


class RecentPrompts:
    """What the prompts that come take alone: of those not yet here, only this is known."""

    def __init__(self) -> None:
        self._alone_s: deque[float] = deque(maxlen=WINDOW)
        self.typical_s = 0.0  # a rather short one; 0 before there was any

    def came(self, alone_s: float) -> None:
        self._alone_s.append(alone_s)
        self.typical_s = sorted(self._alone_s)[int(QUANTILE * len(self._alone_s))]


@dataclass(frozen=True, slots=True)
class Objective:
    """Largest slow-downs, each a multiple of an unloaded request's time. Infinite: bulk takes what is free."""

    ttft: float = 5.0
    tpot: float = 2.0


def first_token_due_s(sequence: Sequence, objective: Objective, step_time: StepTime, max_step_tokens: int) -> float:
    """The instant by which a sequence's first token should be out."""
    alone_s = step_time.unloaded_prefill_s(sequence.num_prompt_tokens, max_step_tokens)
    return sequence.arrival_s + objective.ttft * alone_s


def decode_room_s(sequences: Iterable[Sequence], now: float, objective: Objective, step_time: StepTime) -> float:
    """Seconds that a step may take before a decoding sequence falls behind its pace, in the mean since its first token.

    Infinite without sequences; it may be negative.
    """
    room = math.inf
    a, c, d, tpot = step_time.a, step_time.c, step_time.d, objective.tpot
    for sequence in sequences:
        num_tokens = len(sequence.token_ids)
        pace_s = tpot * (a + c + d * num_tokens)
        due_s = sequence.first_token_s + (num_tokens - sequence.num_prompt_tokens) * pace_s
        room = min(room, due_s - now)
    return room


def prefill_share(sequences: Iterable[Sequence], now: float, step_time: StepTime, max_step_tokens: int) -> float:
    """The part of the time from now on that prompts need, in the order given, to have their first tokens in time.

    0 without sequences; 1 or more if even all of it is not enough.
    """
    share, work_s = 0.0, 0.0
    for sequence in sequences:
        work_s += step_time.unloaded_prefill_s(sequence.num_uncomputed_tokens, max_step_tokens)
        left_s = sequence.due_s - now
        share = max(share, work_s / left_s if left_s > 0 else math.inf)
    return share


def prefill_spare_s(sequences: Iterable[Sequence], now: float, step_time: StepTime, max_step_tokens: int) -> float:
    """Seconds that prompts can still wait if they are then computed one after the other, in the order given.

    Infinite without sequences; it may be negative.
    """
    spare, work_s = math.inf, 0.0
    for sequence in sequences:
        work_s += step_time.unloaded_prefill_s(sequence.num_uncomputed_tokens, max_step_tokens)
        spare = min(spare, sequence.due_s - now - work_s)
    return spare

"""How long may the next step be, so that requests stay within their objective, and what is left for bulk?

The objective is a slow-down: time to first token and time per output token as multiples of what a request has when it
is alone. A request that is ahead of it can wait for a longer step; what the most urgent one can spare is what bulk may
use. Pure arithmetic on the step-time model; the scheduler asks once or twice per step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime

QUIET_S = 10.0  # how long after the last interactive sequence bulk still leaves room for the next
LOSS = 0.02  # what a long prompt alone may lose by being cut into chunks
# A fit to prompts of one length cannot tell what every step costs from what each token does, and may have the former
# near zero; no chunk is made shorter for that.
LEAST_CHUNK_S = 0.015
AIM = 0.97  # of the largest slow-down: aiming at all of it misses it half of the time
# What bulk may use of what requests can spare; chosen by simulation (docs/performance.md), flat around these values:
PACE_SHARE = 0.1  # of the slow-down that decode rows may have
SLACK_SHARE = 0.1  # in one step, of the time that prompts can still wait
NEXT_SHARE = 0.1  # of the time that a rather short prompt, if one came now, could wait
ROWS_SHARE = 0.03  # of the shortest step; all of it once nobody interactive has come for CALM_S
CALM_S = 8.0
MAX_PACED = 64  # with more interactive sequences waiting than this, prompts go first and bulk gets nothing
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


class Pacer:
    """Says for each step how long it may take, prompts and bulk included. Told of everybody interactive who comes."""

    def __init__(self, objective: Objective, max_step_tokens: int) -> None:
        self.objective = objective
        self._max_step_tokens = max_step_tokens
        self._recent = RecentPrompts()
        self._quiet_from_s = -math.inf
        self._came_s = -math.inf

    def came(self, sequence: Sequence) -> None:
        """An interactive sequence, of which it is known when its first token is due."""
        self._came_s = sequence.arrival_s
        self._recent.came((sequence.due_s - sequence.arrival_s) / self.objective.ttft)

    def somebody_is_there(self, now: float) -> None:
        """Something interactive waits or runs."""
        self._quiet_from_s = now + QUIET_S

    def prompt_room_s(self, plan: StepPlan, decoding: list[Sequence], prompts: list[Sequence] | None) -> float:
        """Seconds that the step, with interactive prompts in it, may take.

        Beside decode rows: what those can spare, or else as much that `prompts` (by their due instants; None: too many
        to look at) get the part of the time that they need, at least half. And never longer than a chunk gains by it:
        what every step costs is then `LOSS` of it, and others would only wait.
        """
        step_time = plan.step_time
        longest_s = plan.predicted_s + (max(step_time.a / LOSS, LEAST_CHUNK_S) if step_time.a else math.inf)
        if not decoding or prompts is None:
            return longest_s
        share = prefill_share(prompts, plan.now, step_time, self._max_step_tokens)
        if share >= 1:
            return longest_s
        aim = replace(self.objective, tpot=max(1.0, AIM * self.objective.tpot))
        needed_s = plan.predicted_s * max(aim.tpot, 1 / (1 - share))
        return min(longest_s, max(decode_room_s(decoding, plan.now, aim, step_time), needed_s))

    def bulk_room_s(self, plan: StepPlan, decoding: list[Sequence], prompts: list[Sequence] | None) -> float:
        """Seconds that the step, with bulk in it, may take: what nobody interactive would miss.

        `decoding`: the interactive sequences whose prompt is computed; `prompts` as above.
        """
        now, step_time = plan.now, plan.step_time
        if now >= self._quiet_from_s:
            return math.inf
        if prompts is None:
            return 0.0
        paced = replace(self.objective, tpot=1 + PACE_SHARE * (self.objective.tpot - 1))
        room = decode_room_s(decoding, now, paced, step_time)
        spare = prefill_spare_s(prompts, now, step_time, self._max_step_tokens)
        longer_s = min(SLACK_SHARE * spare, self._next_s(now, step_time))
        return min(room, max(step_time.shortest(), step_time.a + plan.variable_s + longer_s))

    def _next_s(self, now: float, step_time: StepTime) -> float:
        """By how much a step may be longer for bulk, since whoever comes during it waits for its end.

        A part of what such a prompt could wait beyond two of the shortest steps, that one and its own; and always a
        little, more when nobody has come for a while.
        """
        shortest = step_time.shortest()
        next_s = (self.objective.ttft - 1) * max(0.0, self._recent.typical_s - 2 * shortest)
        rows = 1.0 if now - self._came_s > CALM_S else ROWS_SHARE
        return max(NEXT_SHARE * next_s, rows * shortest)

"""Which tokens of which sequences run in the next step. Pure Python: no tensor, no socket, no clock of its own.

Order: interactive decode > interactive prefill > bulk. A step is bounded by a token budget and, while a predictor with
a deadline is served, by `max_step_ms` through the step-time model (never below the device's shortest step). Bulk that
waited too long is lifted to its floor of seats, never above. Nothing past its deadline is ever put into a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Pool
from core_engine.errors import EngineRefused, InvalidRequest
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.messages import PoolLoad
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_time import NOTHING, StepShape, StepTime, chunk_shape

MAX_WAIT_S = {Pool.INTERACTIVE: 10.0, Pool.BULK: 3600.0}  # urgency of a sequence without a deadline
GUARD_S = 1.0  # how long after the last guarded request the step cap stays
GUARDED_BUDGET_S = 1.0  # a budget above this survives any step that the token budget allows
BULK_AGE_S = 0.5  # bulk that has not run for so long is lifted to its floor
MAX_SKIP_AHEAD = 8  # sequences tried behind one that does not fit
MAX_SKIPS = 64  # times one may be overtaken before it blocks the queue


@dataclass(frozen=True, slots=True)
class PoolLimits:
    min_seats: int
    max_seats: int
    max_kv_share: float
    max_queued: int
    max_queued_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    interactive: PoolLimits
    bulk: PoolLimits
    max_context_tokens: int
    max_step_tokens: int
    max_step_s: float

    @property
    def max_seats(self) -> int:
        return max(self.interactive.max_seats, self.bulk.max_seats)

    def of(self, pool: Pool) -> PoolLimits:
        return self.interactive if pool is Pool.INTERACTIVE else self.bulk


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`num_tokens` of a sequence from its first uncomputed one on; `samples` if they reach its last known token."""

    sequence: Sequence
    num_tokens: int
    shape: StepShape

    @property
    def samples(self) -> bool:
        return self.num_tokens == self.sequence.num_uncomputed_tokens

    @property
    def num_outputs(self) -> int:
        """How many of its rows, the last ones, somebody wants the hidden state of."""
        sequence = self.sequence
        end = sequence.num_computed_tokens + self.num_tokens
        return max(0, end - max(sequence.num_computed_tokens, sequence.first_output))


@dataclass(slots=True)
class StepPlan:
    """What runs in one step, decode rows first, and what expired before it."""

    scheduled: list[Scheduled] = field(default_factory=list)
    expired: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (block, its copy), to be made before the run
    shape: StepShape = NOTHING
    tokens_left: int = 0
    cap_s: float = math.inf


class Scheduler:
    def __init__(self, limits: SchedulerLimits, blocks: BlockPool, step_time: StepTime) -> None:
        self.limits = limits
        self.blocks = blocks
        self.step_time = step_time
        self.waiting: dict[Pool, list[Sequence]] = {pool: [] for pool in Pool}
        self.running: dict[Pool, list[Sequence]] = {pool: [] for pool in Pool}
        self.num_steps = 0
        self._guard_until_s = -math.inf
        self._bulk_ran_s = -math.inf

    # -- what comes in and goes out

    def add(self, request: GenerateRequest, now: float) -> Sequence:
        """Queue a request.

        Raises:
            InvalidRequest: an empty prompt, or one that can never fit the context or the KV cache.
            EngineRefused: the pool's queue is at its bound, or the deadline has passed.
        """
        sequence = Sequence(request, now)
        self._check_fits(sequence)
        limits, load = self.limits.of(request.pool), self.load(request.pool)
        if load.waiting >= limits.max_queued:
            raise EngineRefused(f"the {request.pool} queue is full: {load.waiting} requests wait")
        if load.waiting_tokens + sequence.num_prompt_tokens > limits.max_queued_tokens:
            raise EngineRefused(f"the {request.pool} queue is full: {load.waiting_tokens} prompt tokens wait")
        if sequence.deadline_s <= now:
            raise EngineRefused("the deadline passed before the request reached the engine")
        self.waiting[request.pool].append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence wherever it is; one that has already finished is left as it is."""
        if sequence.finish_reason is None:
            self._finish(sequence, FinishReason.ABORT)

    def guard(self, pool: Pool, deadline: Deadline, now: float) -> None:
        """Hold the step cap for a while if this request's budget is one that a long step would break."""
        if pool is Pool.INTERACTIVE and deadline.at_s - now <= GUARDED_BUDGET_S:
            self._guard_until_s = now + GUARD_S

    def load(self, pool: Pool) -> PoolLoad:
        waiting = self.waiting[pool]
        return PoolLoad(len(waiting), sum(s.num_prompt_tokens for s in waiting), len(self.running[pool]))

    def sequences(self) -> Iterator[Sequence]:
        for pool in Pool:
            yield from self.running[pool]
            yield from self.waiting[pool]

    @property
    def has_work(self) -> bool:
        return any(self.running.values()) or any(self.waiting.values())

    # -- one step

    def schedule(self, now: float) -> StepPlan:
        """The plan of the next step at `now`: sequences get seats and blocks here, tokens are computed elsewhere."""
        plan = StepPlan(tokens_left=self.limits.max_step_tokens, cap_s=self._cap_s(now))
        self._expire(plan, now)
        interactive, bulk = self.running[Pool.INTERACTIVE], self.running[Pool.BULK]
        if bulk and now - self._bulk_ran_s > BULK_AGE_S:
            self._run(plan, bulk, limit=self.limits.bulk.min_seats)
        self._run(plan, [s for s in interactive if s.is_decoding])
        self._run(plan, [s for s in interactive if not s.is_decoding])
        self._admit(plan, Pool.INTERACTIVE)
        self._run(plan, bulk)
        self._admit(plan, Pool.BULK)
        if any(item.sequence.pool is Pool.BULK for item in plan.scheduled):
            self._bulk_ran_s = now
        plan.scheduled.sort(key=lambda item: not item.sequence.is_decoding)  # stable: decode rows first
        for item in plan.scheduled:
            item.sequence.last_step = self.num_steps
        self.num_steps += 1
        return plan

    def commit(self, plan: StepPlan, sampled: dict[str, int], eos_token_ids: frozenset[int]) -> None:
        """Take a step's results: `sampled` has the next token of every scheduled sequence that samples."""
        for item in plan.scheduled:
            sequence, samples = item.sequence, item.samples
            sequence.advance(item.num_tokens)
            if samples:
                sequence.append(sampled[sequence.id], eos_token_ids)
            if sequence.finish_reason is not None:
                self._leave(sequence)

    # -- the parts of schedule

    def _cap_s(self, now: float) -> float:
        if now >= self._guard_until_s:
            return math.inf
        return max(self.limits.max_step_s, self.step_time.shortest())

    def _expire(self, plan: StepPlan, now: float) -> None:
        for sequence in [s for s in self.sequences() if s.deadline_s <= now]:
            self._finish(sequence, FinishReason.DEADLINE)
            plan.expired.append(sequence)

    def _run(self, plan: StepPlan, sequences: list[Sequence], limit: int | None = None) -> None:
        """Schedule sequences that have seats, those that ran longest ago first."""
        taken = {id(item.sequence) for item in plan.scheduled}
        for sequence in sorted(sequences, key=lambda s: (s.last_step, s.arrival_s))[:limit]:
            if id(sequence) not in taken:
                self._schedule(plan, sequence)

    def _admit(self, plan: StepPlan, pool: Pool) -> None:
        """Give free seats to waiting sequences, most urgent first, skipping a bounded number that do not fit."""
        queue = sorted(self.waiting[pool], key=lambda s: s.urgency(MAX_WAIT_S[pool]))
        skipped: list[Sequence] = []
        for sequence in queue:
            if plan.tokens_left <= 0 or not self._has_seat(pool) or len(skipped) > MAX_SKIP_AHEAD:
                return
            if not self._has_blocks(sequence):
                if sequence.num_skips >= MAX_SKIPS:
                    return
                skipped.append(sequence)
                continue
            if not self._schedule(plan, sequence):
                return
            self.waiting[pool].remove(sequence)
            self.running[pool].append(sequence)
            for other in skipped:
                other.num_skips += 1

    def _schedule(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Put the largest chunk of `sequence` that the step still allows into the plan; False if not even one token."""
        wanted = min(sequence.num_uncomputed_tokens, plan.tokens_left)
        num_tokens = self._largest_chunk(plan, sequence, wanted)
        if not num_tokens:
            return False
        if not sequence.block_table and not sequence.num_computed_tokens:
            self.blocks.reserve(sequence.id, self.blocks.blocks_for(sequence.max_tokens))
        self.blocks.grow(sequence.id, sequence.block_table, sequence.num_computed_tokens + num_tokens)
        shape = _shape(sequence, num_tokens)
        plan.scheduled.append(Scheduled(sequence, num_tokens, shape))
        plan.shape = plan.shape + shape
        plan.tokens_left -= num_tokens
        return True

    def _largest_chunk(self, plan: StepPlan, sequence: Sequence, wanted: int) -> int:
        """The most tokens up to `wanted` that keep the step within its cap. The first one in a step always fits."""
        if wanted <= 0 or self._fits(plan, sequence, wanted):
            return max(wanted, 0)
        low, high = 0, wanted  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(plan, sequence, middle) else (low, middle)
        return low or (0 if plan.scheduled else 1)

    def _fits(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
        return self.step_time.predict(plan.shape + _shape(sequence, num_tokens)) <= plan.cap_s

    def _has_seat(self, pool: Pool) -> bool:
        """Under the pool's ceiling, and not in a seat that the other pool's floor still claims."""
        other = Pool.BULK if pool is Pool.INTERACTIVE else Pool.INTERACTIVE
        own, others = len(self.running[pool]), len(self.running[other])
        claimed = max(others, self.limits.of(other).min_seats)
        return own < self.limits.of(pool).max_seats and own + claimed < self.limits.max_seats

    def _has_blocks(self, sequence: Sequence) -> bool:
        needed = self.blocks.blocks_for(sequence.max_tokens)
        held = sum(self.blocks.blocks_for(s.max_tokens) for s in self.running[sequence.pool])
        share = self.limits.of(sequence.pool).max_kv_share * self.blocks.total
        return self.blocks.can_reserve(needed) and held + needed <= share

    def _check_fits(self, sequence: Sequence) -> None:
        request = sequence.request
        if not request.prompt_token_ids:
            raise InvalidRequest("the prompt has no tokens", field="prompt", value=0, expected="at least 1 token")
        share = self.limits.of(request.pool).max_kv_share * self.blocks.total
        most = min(self.limits.max_context_tokens, int(share) * self.blocks.block_size)
        if sequence.max_tokens > most:
            raise InvalidRequest(
                f"prompt ({sequence.num_prompt_tokens} tokens) + max_tokens ({request.sampling.max_tokens}) is over "
                f"the {most} tokens that one {request.pool} sequence may hold",
                field="max_tokens",
                value=request.sampling.max_tokens,
                expected=f"prompt + max_tokens <= {most}",
            )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self.waiting[sequence.pool]:
            self.waiting[sequence.pool].remove(sequence)
            return
        self.running[sequence.pool].remove(sequence)
        self.blocks.release(sequence.id, sequence.block_table)


def _shape(sequence: Sequence, num_tokens: int) -> StepShape:
    return chunk_shape(sequence.num_computed_tokens, num_tokens, is_decode=sequence.is_decoding)

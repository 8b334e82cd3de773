"""Which tokens of which sequences run in the next step. Pure Python: no tensor, no socket, no clock of its own.

Order: interactive decode > interactive prefill > bulk. A step is bounded by a token budget, by what its sequences can
spare of their objective (`pacing`), and, while a predictor with a deadline is served, by `max_step_s`, never below the
device's shortest step. Seats and blocks: `seating`. Nothing past its deadline is ever put into a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.expiry import Expiry
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.messages import Counters, PoolLoad
from core_engine.llm.pacing import MAX_PACED, Pacer, first_token_due_s
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.queue_bounds import check_fits, check_queue
from core_engine.llm.seating import Seating
from core_engine.llm.sequence import Sequence
from core_engine.llm.speculation.control import Speculation
from core_engine.llm.step_commit import NOTHING_ACCEPTED, Accepted, commit
from core_engine.llm.step_plan import Scheduled, StepPlan
from core_engine.llm.step_time import StepTime

__all__ = ["PoolLimits", "Scheduled", "Scheduler", "SchedulerLimits", "StepPlan"]

MAX_WAIT_S = {Pool.INTERACTIVE: 10.0, Pool.BULK: 3600.0}  # urgency of a sequence without a deadline
GUARD_S = 1.0  # how long after the last guarded request the step cap stays
GUARDED_BUDGET_S = 1.0  # a budget above this survives any step that the token budget allows
MAX_SKIP_AHEAD = 8  # sequences tried behind one that does not fit
MAX_SKIPS = 64  # times one may be overtaken before it blocks the queue


class Scheduler:
    """`hasher` None switches the prefix cache off, `speculation` None drafts.

    `is_ready` holds back a sequence whose grammar is still compiled.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: BlockPool,
        step_time: StepTime,
        hasher: PrefixHasher | None = None,
        is_ready: Callable[[Sequence], bool] = lambda _: True,
        pacer: Pacer | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.limits = limits
        self.speculation = speculation
        self.blocks = blocks
        self.step_time = step_time
        self.seating = Seating(limits, blocks, hasher)
        self.waiting, self.running = self.seating.waiting, self.seating.running
        self.counters: dict[Pool, Counters] = self.seating.counters
        self.pacer = pacer or Pacer(limits.objective, limits.max_step_tokens)
        self.num_steps = 0
        self._is_ready = is_ready
        self._expiry = Expiry()
        self._guard_until_s = -math.inf
        self._bulk_ran_s = -math.inf

    # -- what comes in and goes out

    def add(self, request: GenerateRequest, now: float) -> Sequence:
        """Queue a request.

        Raises:
            InvalidRequest: an empty prompt, or one that can never fit the context or the KV cache.
            EngineRefused: the pool's queue is at its bound, or the deadline cannot be met even alone.
        """
        sequence = Sequence(request, now)
        pool = sequence.pool
        check_fits(sequence, self.limits, self.seating.ceiling(pool) * self.blocks.block_size)
        check_queue(sequence, self.limits.of(pool), self.waiting[pool], self.counters[pool].refused, now)
        if pool is Pool.BULK and not self._has(pool):
            self._bulk_ran_s = now  # it is not starved before it has waited
        self._rank(sequence)
        self.seating.join(sequence)
        self._expiry.watch(sequence, self.limits.of(pool).max_queue_s)
        self.counters[pool].admitted += 1
        self.counters[pool].prompt_tokens += sequence.num_prompt_tokens
        return sequence

    def abort(self, sequence: Sequence, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a sequence wherever it is; one that has already finished is left as it is."""
        if sequence.finish_reason is None:
            self.seating.finish(sequence, reason)

    def guard(self, pool: Pool, deadline: Deadline, now: float) -> None:
        """Hold the step cap for a while if this request's budget is one that a long step would break."""
        if pool is Pool.INTERACTIVE and deadline.at_s - now <= GUARDED_BUDGET_S:
            self._guard_until_s = now + GUARD_S

    def sequences(self) -> Iterator[Sequence]:
        """Everything that has not ended."""
        for pool in Pool:
            yield from self.running[pool]
            yield from self.waiting[pool]

    def load(self, pool: Pool, now: float = 0.0) -> PoolLoad:
        """What admission, routing and metrics need to know of a pool."""
        return self.seating.load(pool, now)

    def cap_in_force_s(self, now: float) -> float:
        """The step cap that a request with a deadline holds; infinite without one."""
        return self._cap_s(now)

    @property
    def has_work(self) -> bool:
        return any(map(len, self.running.values())) or any(map(len, self.waiting.values()))

    def next_expiry_s(self) -> float:
        """The next instant at which something that has not ended may have to; infinite if there is none."""
        return self._expiry.next_s()

    # -- one step

    def schedule(self, now: float) -> StepPlan:
        """The plan of the next step at `now`: sequences get seats and blocks here, tokens are computed elsewhere."""
        plan = StepPlan(self.step_time, self.limits.max_step_tokens, self._cap_s(now), now)
        self._expire(plan, now)
        self._fill(plan, now)
        while plan.is_empty and self.seating.break_deadlock(plan, self.step_time):
            self._fill(plan, now)
        if self.speculation is not None and plan.decodes:
            self.speculation.lengthen(plan, self.seating)
        for item in plan.decodes:
            item.sequence.last_step = self.num_steps
        for item in plan.chunks:
            item.sequence.last_step = self.num_steps
            item.sequence.first_scheduled_s = min(item.sequence.first_scheduled_s, now)
        if not plan.is_empty:
            self.num_steps += 1
        return plan

    def commit(
        self,
        plan: StepPlan,
        tokens: dict[str, int],
        eos_token_ids: frozenset[int],
        now: float = 0.0,
        accepted: Accepted = NOTHING_ACCEPTED,
    ) -> None:
        """Take a step's results: `tokens` has the next token of every scheduled sequence that samples; see `commit`."""
        commit(self.seating, plan, tokens, accepted, eos_token_ids, now)

    # -- the parts of schedule

    def _fill(self, plan: StepPlan, now: float) -> None:
        interactive, bulk = self.limits.interactive, self.limits.bulk
        if now - self._bulk_ran_s > bulk.max_starve_s and self._has(Pool.BULK):
            self._lift_bulk(plan, now)
        if self._has(Pool.INTERACTIVE):
            self.pacer.somebody_is_there(now)
        decoding, prefilling = self._split(Pool.INTERACTIVE)
        self._decode(plan, decoding)
        room_s = self.pacer.prompt_room_s(plan, decoding, self._prompts(prefilling))
        self._prefill(plan, prefilling, Pool.INTERACTIVE, room_s, interactive.max_step_tokens)
        if self._has(Pool.BULK):
            before = plan.tokens_left
            prompts = self._prompts([s for s in self.running[Pool.INTERACTIVE] if not s.is_decoding])
            plan.bulk_cap_s = self.pacer.bulk_room_s(plan, decoding, prompts)
            self._bulk(plan, plan.bulk_cap_s, bulk.max_step_tokens)
            plan.bulk_tokens_left = bulk.max_step_tokens - (before - plan.tokens_left)
            if plan.tokens_left < before:
                self._bulk_ran_s = now

    def _prompts(self, prefilling: list[Sequence]) -> list[Sequence] | None:
        """All interactive prompts by the instants at which they are due; None if there are too many to think about."""
        waiting = self.waiting[Pool.INTERACTIVE]
        if len(waiting) > MAX_PACED:
            return None
        return sorted([*prefilling, *waiting], key=lambda s: s.due_s)

    def _lift_bulk(self, plan: StepPlan, now: float) -> None:
        """A starved pool's floor: some seats, some tokens, before everybody else."""
        limits = self.limits.bulk
        running = sorted(self.running[Pool.BULK], key=lambda s: s.last_step)[: limits.min_seats]
        tokens = plan.tokens_left - limits.min_step_tokens
        self._decode(plan, [s for s in running if s.is_decoding])
        for sequence in running:
            if not sequence.is_decoding:
                self._chunk(plan, sequence, min(plan.tokens_left - tokens, plan.tokens_left), math.inf)
        if not running:
            self._admit(plan, Pool.BULK, math.inf, limits.min_step_tokens, most=limits.min_seats)
        plan.lifted = True
        if not plan.is_empty:
            self._bulk_ran_s = now

    def _bulk(self, plan: StepPlan, room_s: float, max_tokens: int) -> None:
        decoding, prefilling = self._split(Pool.BULK)
        decoding = [s for s in decoding if s.id not in plan.ids]
        start = plan.tokens_left
        self._decode(plan, sorted(decoding, key=lambda s: s.last_step), room_s, max_tokens)
        self._prefill(plan, prefilling, Pool.BULK, room_s, max_tokens - (start - plan.tokens_left))

    def _decode(
        self, plan: StepPlan, sequences: list[Sequence], room_s: float = math.inf, max_tokens: int = 1 << 30
    ) -> None:
        """One row for each sequence, as far as the step goes; those that ran longest ago first where it ends early."""
        cap_s = min(plan.cap_s, room_s)
        if cap_s < math.inf:
            sequences = sorted(sequences, key=lambda s: s.last_step)
        room_s = cap_s - plan.step_time.a - plan.variable_s
        self.seating.make_room(sequences, plan, self.step_time)
        c, d, size = plan.step_time.c, plan.step_time.d, self.blocks.block_size
        for sequence in sequences[: min(plan.tokens_left, max_tokens)]:
            num_tokens = len(sequence.token_ids)
            cost_s = c + d * num_tokens
            room_s -= cost_s
            if room_s < 0 and not plan.is_empty:
                return
            if not sequence.has_seat:  # it has just been pre-empted
                continue
            if num_tokens <= len(sequence.block_table) * size or self.seating.grow(sequence, num_tokens):
                plan.add_decode(sequence, cost_s)

    def _prefill(self, plan: StepPlan, prefilling: list[Sequence], pool: Pool, room_s: float, max_tokens: int) -> None:
        """Prompts in seats and prompts that get one, by the instants at which their first tokens are due."""
        floor = plan.tokens_left - max_tokens
        running = sorted(prefilling, key=lambda s: s.urgent_s)
        if len(self.waiting[pool]) and self.seating.may_seat(pool):
            self._admit(plan, pool, room_s, max_tokens, running=running)
        for sequence in running:
            if sequence.id not in plan.ids or plan.lifted:
                self._chunk(plan, sequence, plan.tokens_left - max(0, floor), room_s)

    def _admit(
        self,
        plan: StepPlan,
        pool: Pool,
        room_s: float,
        max_tokens: int,
        *,
        running: list[Sequence] | None = None,
        most: int = 1 << 30,
    ) -> None:
        """Give seats to waiting sequences in their order, skipping a bounded number that do not fit.

        Prompts in seats (`running`) that are due before the next waiting one go first.
        """
        floor, queue, skipped = plan.tokens_left - max_tokens, list(running or ()), list[Sequence]()
        for sequence in self.waiting[pool].candidates():
            while queue and queue[0].urgent_s <= sequence.urgent_s:
                self._chunk(plan, queue.pop(0), plan.tokens_left - max(0, floor), room_s)
            if plan.tokens_left <= max(0, floor) or not most or len(skipped) > MAX_SKIP_AHEAD:
                return
            if self._is_hopeless(sequence, plan.now):
                self._expire_one(plan, sequence, FinishReason.DEADLINE)
                continue
            if not self._is_ready(sequence) or self.seating.prefixes.awaits(sequence):
                continue
            if not self._may_start(plan, sequence, room_s) or not self.seating.find_seat(pool, plan):
                return
            if not self.seating.find_blocks(sequence, plan, self.step_time):
                if sequence.num_skips >= MAX_SKIPS:
                    return
                skipped.append(sequence)
                continue
            self.seating.seat(sequence, plan)
            most -= 1
            for other in skipped:
                other.num_skips += 1
            if sequence.is_decoding:
                self._decode(plan, [sequence], room_s)
            else:
                self._chunk(plan, sequence, plan.tokens_left - max(0, floor), room_s)

    def _may_start(self, plan: StepPlan, sequence: Sequence, room_s: float) -> bool:
        """At least one token of it fits into the step, so that it does not take a seat for nothing."""
        room_s = min(plan.cap_s, room_s) - plan.step_time.a - plan.variable_s
        return plan.is_empty or plan.step_time.chunk_cost(0, 1) <= room_s

    def _chunk(self, plan: StepPlan, sequence: Sequence, max_tokens: int, room_s: float) -> None:
        """Put the largest chunk of a prompt into the plan, or more of it, that tokens, seconds and blocks allow."""
        if not sequence.has_seat:  # it has just been pre-empted
            return
        begun = next((item for item in plan.chunks if item.sequence is sequence), None) if plan.lifted else None
        start = sequence.num_computed_tokens + (begun.num_tokens if begun else 0)
        wanted = min(sequence.num_tokens, self.seating.most_tokens(sequence)) - start
        wanted = min(wanted, max_tokens, plan.tokens_left)
        room_s = min(plan.cap_s, room_s) - plan.step_time.a - plan.variable_s
        num_tokens = plan.step_time.largest_chunk(start, room_s, max(0, wanted))
        if wanted > 0 and plan.is_empty:
            num_tokens = max(1, num_tokens)  # the first one in a step always fits
        if num_tokens > 0 and self.seating.grow(sequence, start + num_tokens):
            if begun:
                plan.extend(begun, num_tokens)
            else:
                plan.add_chunk(sequence, num_tokens)

    def _split(self, pool: Pool) -> tuple[list[Sequence], list[Sequence]]:
        """The pool's sequences in seats: those that decode, and those whose prompt is not computed yet."""
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self.running[pool]:
            num_tokens = len(sequence.token_ids)
            is_decoding = num_tokens - sequence.num_computed_tokens == 1 and num_tokens > sequence.num_prompt_tokens
            (decoding if is_decoding else prefilling).append(sequence)
        return decoding, prefilling

    def _has(self, pool: Pool) -> bool:
        return bool(self.running[pool]) or len(self.waiting[pool]) > 0

    def _cap_s(self, now: float) -> float:
        if now >= self._guard_until_s:
            return math.inf
        return max(self.limits.max_step_s, self.step_time.shortest())

    # -- urgency, admission, ends

    def _rank(self, sequence: Sequence) -> None:
        """When its first token is due, and how urgent it is: by its deadline, or else by that."""
        limits, pool = self.limits, sequence.pool
        sequence.due_s = first_token_due_s(sequence, limits.objective, self.step_time, limits.max_step_tokens)
        if pool is Pool.INTERACTIVE:
            self.pacer.came(sequence)
        if sequence.deadline_s < math.inf:
            sequence.urgent_s = sequence.deadline_s
        else:
            due_s = sequence.due_s if pool is Pool.INTERACTIVE else math.inf
            sequence.urgent_s = min(due_s, sequence.arrival_s + MAX_WAIT_S[pool])

    def _expire(self, plan: StepPlan, now: float) -> None:
        for sequence, reason in self._expiry.due(now):
            self._expire_one(plan, sequence, reason)

    def _expire_one(self, plan: StepPlan, sequence: Sequence, reason: FinishReason) -> None:
        self.seating.finish(sequence, reason)
        plan.expired.append(sequence)

    def _is_hopeless(self, sequence: Sequence, now: float) -> bool:
        """Even alone, and with all that is cached, it would not have its first token before its deadline."""
        if sequence.deadline_s == math.inf or sequence.num_completion_tokens:
            return False
        cached = 0 if sequence.block_table else len(self.seating.prefixes.find(sequence)) * self.blocks.block_size
        left = sequence.num_uncomputed_tokens - cached
        return now + self.step_time.unloaded_prefill_s(left, self.limits.max_step_tokens) > sequence.deadline_s

"""Who holds a seat and which KV blocks: the scheduler's book of waiting, seated and displaced sequences.

A seat is a place in the next steps; a sequence that is displaced gives up its seat and keeps its blocks, one that is
pre-empted gives up both and computes them again. Seats and blocks have floors and ceilings per pool.
"""

from __future__ import annotations

from collections.abc import Iterator

from core_engine.contracts import FinishReason, Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.kv_forecast import Holding, LengthHistory, peak_blocks
from core_engine.llm.limits import SchedulerLimits
from core_engine.llm.messages import Counters, PoolLoad
from core_engine.llm.pool_load import CompletionRatio, PrefillShare, load_of
from core_engine.llm.preemption import choose_victim
from core_engine.llm.prefix_cache import PrefixCache
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime
from core_engine.llm.waiting_queue import WaitingQueue

OTHER = {Pool.INTERACTIVE: Pool.BULK, Pool.BULK: Pool.INTERACTIVE}


class Seating:
    def __init__(self, limits: SchedulerLimits, blocks: BlockPool, hasher: PrefixHasher | None) -> None:
        self.limits = limits
        self.blocks = blocks
        self.prefixes = PrefixCache(blocks, hasher)
        self.waiting = {pool: WaitingQueue(limits.tenant_weights) for pool in Pool}
        self.running: dict[Pool, list[Sequence]] = {pool: [] for pool in Pool}
        self.counters = {pool: Counters() for pool in Pool}
        self.prefill_shares = {pool: PrefillShare() for pool in Pool}
        self._ratios = {pool: CompletionRatio() for pool in Pool}
        self._history = {pool: LengthHistory() for pool in Pool}
        self._refused: set[str] = set()  # found no blocks, and nobody has left since: asking again costs time only

    # -- coming and going

    def join(self, sequence: Sequence) -> None:
        queue = self.waiting[sequence.pool]
        queue.arrived(sequence.tenant)
        queue.push(sequence)

    def seat(self, sequence: Sequence, plan: StepPlan) -> None:
        """From the queue into a seat that `find_seat` found, with what the prefix cache has of it."""
        self.waiting[sequence.pool].remove(sequence)
        self.running[sequence.pool].append(sequence)
        sequence.has_seat = True
        if not sequence.block_table:
            num_cached = self.prefixes.attach(sequence, plan)
            self.counters[sequence.pool].cached_tokens += num_cached
            if not sequence.num_preemptions:
                sequence.num_cached_tokens = num_cached
        sequence.is_protected = sequence.num_preemptions > 0
        self.prefixes.promise(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """It has ended, wherever it is."""
        pool, finished = sequence.pool, self.counters[sequence.pool].finished
        sequence.finish_reason = reason
        finished[reason] = finished.get(reason, 0) + 1
        self._take_out(sequence)
        self.blocks.release(sequence.block_table)
        self.waiting[pool].left(sequence.tenant)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and sequence.max_completion_tokens:
            self._history[pool].ended(sequence.num_completion_tokens, sequence.max_completion_tokens)
            self._ratios[pool].observe(sequence.num_completion_tokens, sequence.max_completion_tokens)

    def displace(self, sequence: Sequence) -> None:
        """Take its seat away; its blocks stay."""
        self._take_out(sequence)
        self.waiting[sequence.pool].push(sequence)
        self.counters[sequence.pool].displaced += 1

    def preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        """Take its seat and its blocks away; what it had computed it computes again."""
        self._take_out(sequence)
        self.blocks.release(sequence.block_table)
        sequence.num_computed_tokens = sequence.num_published = 0
        sequence.num_preemptions += 1
        self.waiting[sequence.pool].push(sequence)
        self.counters[sequence.pool].preemptions += 1
        plan.preempted.append(sequence)

    def load(self, pool: Pool, now: float = 0.0) -> PoolLoad:
        """What admission, routing and metrics need to know of a pool."""
        return load_of(
            self.waiting[pool],
            self.running[pool],
            max_seats=min(
                self.limits.of(pool).max_seats, self.limits.max_seats - self.limits.of(OTHER[pool]).min_seats
            ),
            completion_ratio=self._ratios[pool].value,
            prefill_share=self.prefill_shares[pool].at(now),
        )

    @property
    def unused_slots(self) -> int:
        """Slots that sequences hold and have not written: what paging wastes, less than a block each."""
        return sum(len(s.block_table) * self.blocks.block_size - s.num_computed_tokens for s in self.holders())

    # -- seats

    def may_seat(self, pool: Pool) -> bool:
        """A seat is free, or bulk has one more than its floor that an interactive sequence may take."""
        limits, other = self.limits, OTHER[pool]
        own, others = len(self.running[pool]), len(self.running[other])
        if own >= limits.of(pool).max_seats:
            return False
        claimed = limits.of(other).min_seats if pool is Pool.INTERACTIVE else max(others, limits.of(other).min_seats)
        return own + claimed < limits.max_seats

    def find_seat(self, pool: Pool, plan: StepPlan) -> bool:
        """Make sure that a seat is free, by displacing the youngest bulk sequence if it must be."""
        if not self.may_seat(pool):
            return False
        if len(self.running[pool]) + len(self.running[OTHER[pool]]) < self.limits.max_seats:
            return True
        movable = [s for s in self.running[Pool.BULK] if s.id not in plan.ids]
        if not movable:
            return False
        self.displace(max(movable, key=lambda s: s.arrival_s))
        return True

    # -- blocks

    def find_blocks(self, sequence: Sequence, plan: StepPlan, step_time: StepTime) -> bool:
        """Whether a sequence may take a seat: its known tokens find blocks now, and all that run will find theirs.

        An interactive sequence takes blocks from bulk sequences, down to bulk's floor.
        """
        if sequence.block_table:  # displaced: it holds its blocks already
            return True
        found = [] if sequence.id in self._refused else self.prefixes.find(sequence)
        num_new = self.blocks.blocks_for(sequence.num_tokens) - len(found)
        if sequence.id in self._refused or not self._lasts(sequence, found):
            self._refused.add(sequence.id)
            return False
        num_idle = sum(not self.blocks.is_held(block) for block in found)
        while num_new > self._available(sequence.pool) - num_idle:
            victim = self._victim(sequence.pool, plan, step_time, num_new, above_floor=True)
            if victim is None or victim.pool is sequence.pool:
                return False
            self.preempt(victim, plan)
            if any(self.blocks.find(name) != block for name, block in zip(sequence.block_hashes, found, strict=False)):
                return False  # the victim's blocks were given away; look again in the next step
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend its table to hold `num_tokens`; false, and nothing taken, if there are too few blocks."""
        table, missing = sequence.block_table, self.blocks.blocks_for(num_tokens) - len(sequence.block_table)
        if missing <= 0:
            return True
        if missing > self._available(sequence.pool):
            return False
        table.extend(self.blocks.take(sequence.pool) for _ in range(missing))
        return True

    def trim(self, sequence: Sequence) -> None:
        """Give back what it holds beyond its computed tokens: blocks taken for a draft that turned out wrong."""
        keep = self.blocks.blocks_for(sequence.num_computed_tokens)
        extra = sequence.block_table[keep:]
        del sequence.block_table[keep:]
        self.blocks.release(extra)

    def most_tokens(self, sequence: Sequence) -> int:
        """How many tokens its table could hold if it took every block that it may."""
        num_blocks = len(sequence.block_table) + max(0, self._available(sequence.pool))
        return num_blocks * self.blocks.block_size

    def make_room(self, sequences: list[Sequence], plan: StepPlan, step_time: StepTime) -> None:
        """Pre-empt until each of the decoding `sequences` that needs a block finds one, or nobody can be pre-empted.

        Those that are protected come first afterwards, in place: for them there is always room.
        """
        if not sequences or self._available(sequences[0].pool) >= len(sequences):
            return
        pool, size = sequences[0].pool, self.blocks.block_size
        needy = {s.id for s in sequences if len(s.token_ids) > len(s.block_table) * size}
        while len(needy) > self._available(pool):
            victim = self._victim(pool, plan, step_time, len(needy) - self._available(pool))
            if victim is None:
                break
            needy.discard(victim.id)
            self.preempt(victim, plan)
        sequences.sort(key=lambda s: not s.is_protected)

    def break_deadlock(self, plan: StepPlan, step_time: StepTime) -> bool:
        """Nothing could run although seats are taken: half-computed prompts hold all blocks. One of them goes."""
        if not any(self.running.values()):
            return False
        victim = choose_victim(self.holders(), self.blocks, step_time, 1)
        if victim is not None:
            self.preempt(victim, plan)
        return victim is not None

    def ceiling(self, pool: Pool) -> int:
        """The most blocks that a pool may ever hold: its share, and never what the other's floor claims."""
        total = self.blocks.total
        return min(int(self.limits.of(pool).max_kv_share * total), total - self._floor(OTHER[pool]))

    # -- parts

    def _take_out(self, sequence: Sequence) -> None:
        """From its seat or from the queue, wherever it is."""
        self._refused.clear()
        if sequence.has_seat:
            self.running[sequence.pool].remove(sequence)
            sequence.has_seat = False
            self.prefixes.withdraw(sequence)
        else:
            self.waiting[sequence.pool].remove(sequence)

    def _floor(self, pool: Pool) -> int:
        return int(self.limits.of(pool).min_kv_share * self.blocks.total)

    def holders(self) -> Iterator[Sequence]:
        """Everything that holds blocks, or has a seat."""
        for pool in Pool:
            yield from self.running[pool]
            yield from (s for s in self.waiting[pool] if s.block_table)

    def _victim(
        self, pool: Pool, plan: StepPlan, step_time: StepTime, num_needed: int, *, above_floor: bool = False
    ) -> Sequence | None:
        """Who gives way to `pool`: never one that is in the step already, nor interactive to bulk."""
        candidates = (s for s in self.holders() if s.id not in plan.ids)
        if pool is Pool.BULK:
            candidates = (s for s in candidates if s.pool is Pool.BULK)
        elif above_floor and self.blocks.held[Pool.BULK] <= self._floor(Pool.BULK):
            return None
        return choose_victim(candidates, self.blocks, step_time, num_needed)

    def _available(self, pool: Pool) -> int:
        """Blocks that a pool may still take: free, not claimed by the other's floor, under its own ceiling."""
        blocks, other = self.blocks, OTHER[pool]
        claimed = max(0, self._floor(other) - blocks.held[other])
        return min(blocks.num_free - claimed, self.ceiling(pool) - blocks.held[pool])

    def _lasts(self, sequence: Sequence, found: list[int]) -> bool:
        """With it, everything that must not be pre-empted for it will find blocks: of its own pool, and of both."""
        own = [s for s in self.holders() if s.pool is sequence.pool]
        # what bulk holds an interactive sequence may take, but for those that are protected
        kept = [s for s in self.holders() if s.pool is not sequence.pool]
        if sequence.pool is Pool.INTERACTIVE:
            kept = [s for s in kept if s.is_protected]
        ceiling, total = self.ceiling(sequence.pool), self.blocks.total
        return self._fits(sequence, found, own, ceiling) and (
            not kept or self._fits(sequence, found, own + kept, total)
        )

    def _fits(self, sequence: Sequence, found: list[int], others: list[Sequence], num_blocks: int) -> bool:
        """Whether a sequence and `others` will together never need more than `num_blocks`."""
        blocks = self.blocks
        most = blocks.blocks_for(sequence.max_tokens)
        if not others:
            return most <= num_blocks
        if sequence.num_preemptions:  # it comes back only if it is certain never to be pre-empted again
            most += sum(blocks.blocks_for(s.max_tokens) for s in others if s.is_protected)
            if most > num_blocks:
                return False
        holdings = [self._holding(s, len(s.block_table), blocks.num_shared(s.block_table)) for s in others]
        num_shared = sum(blocks.is_held(block) for block in found)
        num_held = round(sum(blocks.share_of(s.block_table) for s in others)) + len(found) - num_shared
        holdings.append(self._holding(sequence, len(found), num_shared))
        return peak_blocks(holdings, num_held, blocks.block_size) <= num_blocks

    def _holding(self, sequence: Sequence, num_blocks: int, num_shared: int) -> Holding:
        maximum, completion = sequence.max_completion_tokens, sequence.num_completion_tokens
        if sequence.is_protected or sequence.num_preemptions:
            remaining = maximum - completion
        else:
            remaining = self._history[sequence.pool].remaining(completion, maximum)
        # the last sampled token is never stored
        return Holding(sequence.num_tokens, max(0, remaining - 1), num_blocks, num_shared)

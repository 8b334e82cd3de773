"""What our scheduler is compared with, written out in full so that nobody has to trust a setting.

`LastInFirstOut`: the rule of FIELD_RULES 1, as vLLM's engine does it: first come, first served; a sequence is admitted
while blocks for all of its known tokens are free; on a shortage the one admitted last loses its blocks, goes to the
head of the queue and is computed again. `StaticBatches`: as many as there are seats, together to the end of the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from core_engine.contracts import GenerateRequest, Pool
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from core_engine.llm.step_time import StepTime


class CountedBlocks:
    """Blocks that are only counted."""

    def __init__(self, total: int, block_size: int) -> None:
        self.total = self.num_free = total
        self.block_size = block_size

    def needed(self, sequence: Sequence, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) - len(sequence.block_table)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it blocks for so many tokens; False, and nothing given, if they are not free."""
        needed = self.needed(sequence, num_tokens)
        if needed > self.num_free:
            return False
        if needed > 0:
            sequence.block_table += [0] * needed
            self.num_free -= needed
        return True

    def release(self, sequence: Sequence) -> None:
        self.num_free += len(sequence.block_table)
        sequence.block_table.clear()


class LastInFirstOut:
    """One queue in order of arrival; pools are not told apart."""

    def __init__(self, blocks: CountedBlocks, step_time: StepTime, max_seats: int, max_step_tokens: int) -> None:
        self.blocks = blocks
        self.step_time = step_time
        self.max_seats = max_seats
        self.max_step_tokens = max_step_tokens

        self.waiting: dict[Pool, list[Sequence]] = {Pool.INTERACTIVE: []}
        self.running: dict[Pool, list[Sequence]] = {Pool.INTERACTIVE: []}

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._seated)

    @property
    def _queue(self) -> list[Sequence]:
        return self.waiting[Pool.INTERACTIVE]

    @property
    def _seated(self) -> list[Sequence]:
        return self.running[Pool.INTERACTIVE]

    def sequences(self) -> Iterator[Sequence]:
        yield from (*self._seated, *self._queue)

    def add(self, request: GenerateRequest, now: float) -> Sequence:
        sequence = Sequence(request, now)
        self._queue.append(sequence)
        return sequence

    def next_expiry_s(self) -> float:
        return math.inf

    def schedule(self, now: float) -> StepPlan:
        plan = StepPlan(self.step_time, self.max_step_tokens)
        has_preempted = self._run_seated(plan)
        if not has_preempted:
            self._admit(plan)

        return plan

    def commit(self, plan: StepPlan, tokens: dict[str, int], eos_token_ids: frozenset[int], now: float) -> None:
        for item in plan.scheduled:
            sequence, samples = item.sequence, item.samples
            sequence.advance(item.num_tokens)
            if samples:
                sequence.finish_reason = sequence.append(tokens[sequence.id], eos_token_ids)
            if sequence.finish_reason is not None:
                self._seated.remove(sequence)
                self.blocks.release(sequence)

    def _run_seated(self, plan: StepPlan) -> bool:
        """Every seated sequence in order of admission, at the cost of the last ones; whether it cost any."""
        place, has_preempted = 0, False
        while place < len(self._seated) and plan.tokens_left > 0:
            sequence = self._seated[place]
            num_tokens = min(sequence.num_uncomputed_tokens, plan.tokens_left)
            if self.blocks.grow(sequence, sequence.num_computed_tokens + num_tokens):
                _put(plan, sequence, num_tokens)
                place += 1
            else:
                has_preempted = True
                self._preempt_last()
        return has_preempted

    def _preempt_last(self) -> None:
        victim = self._seated.pop()
        self.blocks.release(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._queue.insert(0, victim)

    def _admit(self, plan: StepPlan) -> None:
        while self._queue and plan.tokens_left > 0 and len(self._seated) < self.max_seats:
            sequence = self._queue[0]
            if self.blocks.needed(sequence, sequence.num_tokens) > self.blocks.num_free:
                return
            num_tokens = min(sequence.num_uncomputed_tokens, plan.tokens_left)
            self.blocks.grow(sequence, num_tokens)
            _put(plan, sequence, num_tokens)
            self._seated.append(self._queue.pop(0))


class StaticBatches(LastInFirstOut):
    """A batch is taken when the one before is done, from what waits then; rows that end early leave their seats empty.

    Kinder than life: rows that have ended cost nothing, and each answer is out at its own last token. Blocks must
    suffice for a full batch.
    """

    def __init__(self, blocks: CountedBlocks, step_time: StepTime, max_seats: int, max_step_tokens: int) -> None:
        super().__init__(blocks, step_time, max_seats, max_step_tokens)
        self._batch: list[Sequence] = []  # chosen, not yet in a step

    def _admit(self, plan: StepPlan) -> None:
        if not self._seated and not self._batch:
            self._batch = self._queue[: self.max_seats]
        while self._batch and plan.tokens_left > 0:
            sequence = self._batch.pop(0)
            num_tokens = min(sequence.num_uncomputed_tokens, plan.tokens_left)
            if not self.blocks.grow(sequence, sequence.max_tokens):
                raise ValueError(f"{self.blocks.num_free} free blocks do not hold a batch of {self.max_seats}")
            _put(plan, sequence, num_tokens)
            self._queue.remove(sequence)
            self._seated.append(sequence)


def _put(plan: StepPlan, sequence: Sequence, num_tokens: int) -> None:
    if sequence.is_decoding:
        plan.add_decode(sequence, plan.step_time.decode_cost(sequence.num_tokens))
    else:
        plan.add_chunk(sequence, num_tokens)

"""Heads through a real runner by plans made by hand: every chunking and interleaving that a test wants."""

from __future__ import annotations

from collections.abc import Sequence as Items

from core_engine.contracts import Deadline, GenerateRequest, Head, SamplingParams
from core_engine.llm.head_plan import HeadPlan
from core_engine.llm.runner import Runner
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan
from tests.core_engine.llm.tiny import STEP_TIME, tiny_engine

BLOCK_SIZE = 4


def head_request(prompt: Items[int], head: Head, attempt_id: str = "head") -> GenerateRequest:
    return GenerateRequest(attempt_id, tuple(prompt), SamplingParams(), Deadline.never(), head=head)


class ByHand:
    """A tiny engine's runner; sequences get blocks of their own, and chunks of at most `chunk` tokens."""

    def __init__(self, num_blocks: int = 128) -> None:
        self.runner: Runner = tiny_engine(num_blocks=num_blocks, block_size=BLOCK_SIZE).runner
        self._next_block = 1

    def sequence(self, request: GenerateRequest) -> Sequence:
        sequence = Sequence(request, 0.0)
        count = -(-sequence.max_tokens // BLOCK_SIZE)
        sequence.block_table = list(range(self._next_block, self._next_block + count))
        self._next_block += count
        return sequence

    def step(self, sequences: Items[Sequence], chunk: int) -> dict[str, tuple[float, ...]]:
        """Every sequence's next chunk in one step; what is decoding goes on by what was sampled."""
        plan = StepPlan(STEP_TIME, 1 << 20)
        for sequence in sequences:
            if sequence.is_decoding:
                plan.add_decode(sequence, 0.0)
            else:
                plan.add_chunk(sequence, min(chunk, sequence.num_uncomputed_tokens))
        items = plan.scheduled
        result = self.runner.run(plan, lambda: None)
        assert set(result.tokens) == {i.sequence.id for i in items if i.samples and i.sequence.request.head is None}
        for item in items:
            item.sequence.advance(item.num_tokens)
            if item.sequence.id in result.tokens:
                item.sequence.append(result.tokens[item.sequence.id], frozenset())
        return result.heads

    def run(
        self, requests: Items[GenerateRequest], chunk: int = 1000, neighbours: Items[Sequence] = ()
    ) -> dict[str, tuple[float, ...]]:
        """The values of every request's head, all of their sequences side by side with `neighbours`."""
        plans = {request.attempt_id: HeadPlan(request) for request in requests}
        owners = {part.attempt_id: owner for owner, plan in plans.items() for part in plan.requests}
        waiting = [self.sequence(part) for plan in plans.values() for part in plan.requests]
        values = {}
        while waiting:
            for sequence_id, given in self.step([*waiting, *neighbours], chunk).items():
                whole = plans[owners[sequence_id]].collect(sequence_id, given)
                if whole is not None:
                    values[owners[sequence_id]] = whole
            waiting = [sequence for sequence in waiting if sequence.num_uncomputed_tokens]
        assert set(values) == set(plans)
        return values

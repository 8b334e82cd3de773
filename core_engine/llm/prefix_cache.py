"""Finds the computed blocks that a prompt begins with, and tells a prompt to wait whose beginning is being computed.

Blocks get their names only after the step that filled them has succeeded. What nobody may skip is `first_output`: of a
prompt whose every block is there, one token is still computed, into a copy of the last block.
"""

from __future__ import annotations

from core_engine.contracts import Pool
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import StepPlan


class PrefixCache:
    """`hasher` None: nothing is ever found."""

    def __init__(self, blocks: BlockPool, hasher: PrefixHasher | None) -> None:
        self._blocks = blocks
        self._hasher = hasher
        self._promised: dict[bytes, Sequence] = {}  # names of blocks being computed, and by whom

    def find(self, sequence: Sequence) -> list[int]:
        """The blocks, from the first on, that can be used instead of computing them."""
        if self._hasher is None:
            return []
        found: list[int] = []
        num_full = sequence.first_output // self._blocks.block_size
        self._hasher.extend(sequence, num_full)
        for name in sequence.block_hashes[:num_full]:
            block = self._blocks.find(name)
            if block is None:
                break
            found.append(block)
        return found

    def awaits(self, sequence: Sequence) -> bool:
        """The first block that is missing is being computed by a sequence that is no less urgent: wait for it."""
        if self._hasher is None or not self._promised or sequence.block_table:
            return False
        missing = len(self.find(sequence))
        if missing * self._blocks.block_size >= sequence.first_output or missing >= len(sequence.block_hashes):
            return False
        leader = self._promised.get(sequence.block_hashes[missing])
        return leader is not None and (leader.pool is Pool.INTERACTIVE or sequence.pool is Pool.BULK)

    def attach(self, sequence: Sequence, plan: StepPlan) -> int:
        """Give a sequence without blocks those that are found; how many of its tokens need no computing."""
        found, size = self.find(sequence), self._blocks.block_size
        for block in found:
            self._blocks.share(block, sequence.pool)
        sequence.block_table.extend(found)
        sequence.num_published = len(found)
        num_cached = len(found) * size
        if self._copy_last(sequence, num_cached, plan):
            num_cached = sequence.first_output
        sequence.num_computed_tokens = num_cached
        return num_cached

    def _copy_last(self, sequence: Sequence, num_cached: int, plan: StepPlan) -> bool:
        """If the block of the first wanted position is there as well: take a copy, and one token is left to compute."""
        size, wanted = self._blocks.block_size, sequence.first_output
        is_partial = num_cached < wanted < num_cached + size <= sequence.num_tokens
        if self._hasher is None or not is_partial:
            return False
        index = num_cached // size
        self._hasher.extend(sequence, index + 1)
        source = self._blocks.find(sequence.block_hashes[index])
        if source is None or self._blocks.num_free < 2:
            return False
        self._blocks.share(source, sequence.pool)  # or taking its copy might evict it
        copy = self._blocks.take(sequence.pool)
        self._blocks.release([source])
        sequence.block_table.append(copy)
        plan.copies.append((source, copy))
        return True

    def promise(self, sequence: Sequence) -> None:
        """A sequence in a seat is going to compute the rest of its prompt's full blocks."""
        if self._hasher is None:
            return
        num_full = sequence.num_prompt_tokens // self._blocks.block_size
        self._hasher.extend(sequence, num_full)
        for name in sequence.block_hashes[sequence.num_published : num_full]:
            self._promised.setdefault(name, sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """It is not going to, for now."""
        for name in sequence.block_hashes[sequence.num_published :]:
            if self._promised.get(name) is sequence:
                del self._promised[name]

    def publish(self, sequence: Sequence) -> None:
        """Name the blocks that are full by now. Called after a step that succeeded.

        Where somebody else was first, theirs is taken and the own one given back, so that blocks with several holders
        are always the first ones of their tables.
        """
        num_full = sequence.num_computed_tokens // self._blocks.block_size
        if self._hasher is None or num_full <= sequence.num_published:
            return
        self._hasher.extend(sequence, num_full)
        for index in range(sequence.num_published, num_full):
            name = sequence.block_hashes[index]
            own, known = sequence.block_table[index], self._blocks.find(name)
            if known is None:
                self._blocks.publish(own, name)
            else:
                self._blocks.share(known, sequence.pool)
                self._blocks.release([own])
                sequence.block_table[index] = known
            if self._promised.get(name) is sequence:
                del self._promised[name]
        sequence.num_published = num_full

"""The pool of KV blocks: who holds which, and how many are promised. Pure bookkeeping; the tensors are the runner's.

A sequence reserves the most blocks that it can ever need before it takes a seat, and takes them one by one as it grows:
without pre-emption that is what makes a running sequence certain to finish.
"""

from __future__ import annotations

from collections import deque


class BlockPool:
    """Blocks 1..num_blocks-1 are handed out; block 0 is the padding block that nobody reads as its own."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(f"a pool needs at least 2 blocks of at least 1 slot, got {num_blocks} of {block_size}")
        self.block_size = block_size
        self.total = num_blocks - 1
        self._free = deque(range(1, num_blocks))
        self._held: set[int] = set()
        self._reserved: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_reserved(self) -> int:
        """Blocks promised to sequences in seats, taken or not yet."""
        return sum(self._reserved.values())

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def can_reserve(self, num_blocks: int) -> bool:
        return self.num_reserved + num_blocks <= self.total

    def reserve(self, owner: str, num_blocks: int) -> None:
        """Promise `num_blocks` to `owner`, which must hold no promise yet."""
        assert owner not in self._reserved, f"{owner} reserved twice"
        assert self.can_reserve(num_blocks), f"{num_blocks} blocks for {owner} were not checked first"
        self._reserved[owner] = num_blocks

    def grow(self, owner: str, block_table: list[int], num_tokens: int) -> None:
        """Extend `block_table` in place until it holds `num_tokens`, within the owner's promise."""
        needed = self.blocks_for(num_tokens)
        assert needed <= self._reserved[owner], f"{owner} outgrew its reservation of {self._reserved[owner]} blocks"
        while len(block_table) < needed:
            block = self._free.popleft()
            self._held.add(block)
            block_table.append(block)

    def release(self, owner: str, block_table: list[int]) -> None:
        """Give back an owner's blocks and its promise; the table is emptied in place."""
        del self._reserved[owner]
        for block in block_table:
            self._held.remove(block)
            self._free.append(block)
        block_table.clear()

    def check_integrity(self, block_tables: list[list[int]]) -> None:
        """Free + held is the total, every held block is in exactly one table, and nobody is past its promise.

        Raises:
            AssertionError: naming what does not add up.
        """
        assert len(self._free) + len(self._held) == self.total, "blocks were lost or made"
        assert not self._held.intersection(self._free), "a block is free and held"
        tabled = [block for table in block_tables for block in table]
        assert len(tabled) == len(set(tabled)), "two sequences share a block"
        assert set(tabled) == self._held, "a held block is in no table, or a table has a free one"
        assert len(self._held) <= self.num_reserved <= self.total, "promises do not cover what is held"

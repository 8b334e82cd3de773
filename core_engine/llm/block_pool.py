"""The pool of KV blocks: who holds which, and which names the unheld ones keep. Pure bookkeeping, no tensor.

A block is free, cached (held by nobody, but its contents have a name and can be found again) or held by one sequence or
several. Caching costs no room: a cached block is given away as soon as it is needed, those that only bulk had held
first (a nightly job must not flush what requests share), then the least recently released.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from core_engine.contracts import Pool


class BlockPool:
    """Blocks 1..num_blocks-1 are handed out; block 0 is the padding block that nobody reads as its own."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(f"a pool needs at least 2 blocks of at least 1 slot, got {num_blocks} of {block_size}")
        self.block_size = block_size
        self.total = num_blocks - 1
        self.refs = [0] * num_blocks  # holders of each block
        self._free = deque(range(1, num_blocks))
        # in order of release; a plain dict would walk past all entries deleted before at every eviction
        self._cached: dict[Pool, OrderedDict[int, None]] = {pool: OrderedDict() for pool in Pool}
        self.held = dict.fromkeys(Pool, 0)  # distinct blocks; a shared one counts for its highest-class holder
        self._holder = [Pool.BULK] * num_blocks  # of a held block, the highest class among its holders
        self._keep = [Pool.BULK] * num_blocks  # the highest class that has held it since it was free
        self._name_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now: the free and the cached ones."""
        return len(self._free) + self.num_cached

    @property
    def num_cached(self) -> int:
        return sum(map(len, self._cached.values()))

    @property
    def num_held(self) -> int:
        return sum(self.held.values())

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find(self, name: bytes) -> int | None:
        """The block of this name, held or cached."""
        return self._block_of.get(name)

    def is_held(self, block: int) -> bool:
        return self.refs[block] > 0

    def num_shared(self, block_table: list[int]) -> int:
        """How many of a table's blocks, from the first on, others hold too."""
        for index, block in enumerate(block_table):
            if self.refs[block] < 2:
                return index
        return len(block_table)

    def share_of(self, block_table: list[int]) -> float:
        """Blocks that a table stands for: one that others hold too counts as a part. Sums to `num_held` over all."""
        num_shared = self.num_shared(block_table)
        return len(block_table) - num_shared + sum(1 / self.refs[block] for block in block_table[:num_shared])

    def share(self, block: int, pool: Pool) -> None:
        """One more holder of a block that `find` gave."""
        if not self.refs[block]:
            del self._cached[self._keep[block]][block]
            self._hold(block, pool)
        elif pool is Pool.INTERACTIVE is not self._holder[block]:
            self.held[Pool.BULK] -= 1
            self._hold(block, pool)
        self.refs[block] += 1
        if pool is Pool.INTERACTIVE:
            self._keep[block] = pool

    def take(self, pool: Pool) -> int:
        """A block with one holder and no name. The caller has looked at `num_free`."""
        block = self._free.popleft() if self._free else self._evict()
        self.refs[block] = 1
        self._keep[block] = pool
        self._hold(block, pool)
        return block

    def publish(self, block: int, name: bytes) -> None:
        """Name a held block whose contents are complete. `find` has said that nobody has this name."""
        assert name not in self._block_of, "two blocks of one name"
        self._block_of[name] = block
        self._name_of[block] = name

    def release(self, block_table: list[int]) -> None:
        """One holder less for each block; the table is emptied in place. Ends of chains go before their beginnings."""
        while block_table:
            block = block_table.pop()
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            self.held[self._holder[block]] -= 1
            if block in self._name_of:
                self._cached[self._keep[block]][block] = None
            else:
                self._free.append(block)

    def forget_names(self) -> None:
        """Nothing that is cached or held can be found any more: the weights have changed."""
        for cached in self._cached.values():
            self._free.extend(cached)
            cached.clear()
        self._name_of.clear()
        self._block_of.clear()

    def _hold(self, block: int, pool: Pool) -> None:
        self._holder[block] = pool
        self.held[pool] += 1

    def _evict(self) -> int:
        cached = self._cached[Pool.BULK] or self._cached[Pool.INTERACTIVE]
        block, _ = cached.popitem(last=False)
        del self._block_of[self._name_of.pop(block)]
        return block

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Free + cached + held is the total, reference counts agree with the tables, names and blocks with each other.

        Raises:
            AssertionError: naming what does not add up.
        """
        holders = Counter(block for table in block_tables for block in table)
        cached = [block for blocks in self._cached.values() for block in blocks]
        assert holders == Counter({b: n for b, n in enumerate(self.refs) if n}), "reference counts differ from tables"
        assert len(self._free) + len(cached) + len(holders) == self.total, "blocks were lost or made"
        assert len({*self._free, *cached, *holders}) == self.total, "a block is in two states"
        assert self.held == {p: sum(self._holder[b] is p for b in holders) for p in Pool}, "the pools' counts are wrong"
        assert 0 not in {*self._free, *cached, *holders}, "the padding block is in use"
        assert {self._block_of[name] for name in self._block_of} == set(self._name_of), "names and blocks differ"
        assert all(self._block_of[name] == block for block, name in self._name_of.items()), "a name has two blocks"
        assert set(cached) <= set(self._name_of), "a cached block has no name"
        assert not set(self._free) & set(self._name_of), "a free block has a name"

"""The block pool adds up after any sequence of promises, growth and release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_engine.llm.block_pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Random owners reserve, grow and leave; the pool is asked to account for itself after each move."""

    @initialize(num_blocks=st.integers(2, 40), block_size=st.integers(1, 17))
    def build(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.tables: dict[str, list[int]] = {}
        self.promised: dict[str, int] = {}
        self.count = 0

    @rule(num_tokens=st.integers(1, 200))
    def reserve(self, num_tokens: int) -> None:
        blocks = self.pool.blocks_for(num_tokens)
        if not self.pool.can_reserve(blocks):
            assert sum(self.promised.values()) + blocks > self.pool.total
            return
        owner = f"owner-{self.count}"
        self.count += 1
        self.pool.reserve(owner, blocks)
        self.tables[owner], self.promised[owner] = [], blocks

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.tables)))
        num_tokens = data.draw(st.integers(0, self.promised[owner] * self.pool.block_size))
        before = len(self.tables[owner])
        self.pool.grow(owner, self.tables[owner], num_tokens)
        assert len(self.tables[owner]) == max(before, self.pool.blocks_for(num_tokens))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.tables)))
        table = self.tables.pop(owner)
        del self.promised[owner]
        self.pool.release(owner, table)
        assert table == []

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(list(self.tables.values()))
            assert self.pool.num_free == self.pool.total - sum(len(t) for t in self.tables.values())
            assert self.pool.num_reserved == sum(self.promised.values())


TestPool = PoolMachine.TestCase


def test_the_padding_block_is_never_handed_out() -> None:
    pool, table = BlockPool(5, 2), list[int]()
    pool.reserve("a", 4)
    pool.grow("a", table, 8)
    assert sorted(table) == [1, 2, 3, 4]


@given(num_tokens=st.integers(0, 10_000), block_size=st.integers(1, 64))
def test_blocks_for_is_the_ceiling(num_tokens: int, block_size: int) -> None:
    blocks = BlockPool(2, block_size).blocks_for(num_tokens)
    assert blocks * block_size >= num_tokens > (blocks - 1) * block_size or num_tokens == blocks == 0


def test_check_integrity_sees_a_block_in_two_tables_and_a_lost_one() -> None:
    pool, table = BlockPool(5, 2), list[int]()
    pool.reserve("a", 2)
    pool.grow("a", table, 4)
    with pytest.raises(AssertionError, match="share a block"):
        pool.check_integrity([table, table[:1]])
    with pytest.raises(AssertionError, match="no table"):
        pool.check_integrity([table[:1]])


def test_growing_past_the_promise_is_our_own_error() -> None:
    pool = BlockPool(9, 2)
    pool.reserve("a", 1)
    with pytest.raises(AssertionError, match="outgrew"):
        pool.grow("a", [], 3)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 4), (0, 4), (4, 0)])
def test_a_pool_that_can_hold_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        BlockPool(num_blocks, block_size)

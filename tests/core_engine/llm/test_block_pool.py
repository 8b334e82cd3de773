"""Blocks are free, cached or held, by one or several; whoever asks, the books add up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Pool
from core_engine.llm.block_pool import BlockPool


def table(pool: BlockPool, count: int, owner: Pool = Pool.INTERACTIVE, name: str = "") -> list[int]:
    """A table of `count` new blocks; with a `name` all of them are published."""
    blocks = [pool.take(owner) for _ in range(count)]
    for index, block in enumerate(blocks if name else []):
        pool.publish(block, f"{name}{index}".encode())
    return blocks


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (0, 16), (5, 0)])
def test_a_pool_without_a_usable_block_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(num_blocks, block_size)


def test_the_padding_block_is_never_handed_out() -> None:
    pool = BlockPool(9, 4)
    assert 0 not in table(pool, 8)
    assert pool.num_free == 0


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(num_tokens: int, expected: int) -> None:
    assert BlockPool(4, 4).blocks_for(num_tokens) == expected


def test_released_blocks_with_a_name_are_found_again_and_those_without_are_free() -> None:
    pool = BlockPool(9, 4)
    named, plain = table(pool, 3, name="a"), table(pool, 2)
    first = named[0]
    pool.release(named)
    pool.release(plain)
    assert (pool.num_free, pool.num_cached, pool.num_held) == (8, 3, 0)
    assert pool.find(b"a0") == first
    assert pool.find(b"b0") is None
    pool.share(first, Pool.BULK)
    assert pool.is_held(first)
    assert pool.num_cached == 2
    pool.check_integrity([[first]])


def test_what_bulk_released_is_given_away_before_what_requests_share() -> None:
    pool = BlockPool(5, 4)
    interactive, bulk = table(pool, 2, Pool.INTERACTIVE, "i"), table(pool, 2, Pool.BULK, "b")
    pool.release(interactive)  # released earlier, so plain LRU would give these away first
    pool.release(bulk)
    table(pool, 2, Pool.BULK)
    assert pool.find(b"b0") is pool.find(b"b1") is None
    assert pool.find(b"i0")
    assert pool.find(b"i1")


def test_a_block_that_bulk_took_up_from_requests_stays_theirs() -> None:
    pool = BlockPool(4, 4)
    shared, bulk = table(pool, 1, Pool.INTERACTIVE, "i"), table(pool, 1, Pool.BULK, "b")
    pool.release(shared)
    pool.share(block := pool.find(b"i0") or 0, Pool.BULK)
    assert pool.held == {Pool.INTERACTIVE: 0, Pool.BULK: 2}  # now it is bulk that holds it
    pool.release([block])
    pool.release(bulk)
    table(pool, 2, Pool.BULK)
    assert pool.find(b"b0") is None
    assert pool.find(b"i0")


def test_within_a_class_the_least_recently_released_goes_first_and_ends_of_chains_before_their_beginnings() -> None:
    pool = BlockPool(6, 4)
    old, new = table(pool, 3, name="old"), table(pool, 2, name="new")
    pool.release(old)
    pool.release(new)
    for gone in (b"old2", b"old1", b"old0", b"new1", b"new0"):
        assert pool.find(gone)
        table(pool, 1)
        assert pool.find(gone) is None


def test_a_block_held_by_both_counts_for_interactive_and_is_shared_by_parts() -> None:
    pool = BlockPool(9, 4)
    first = table(pool, 3, Pool.BULK, "p")
    second = [first[0], first[1]]
    for block in second:
        pool.share(block, Pool.INTERACTIVE)
    second += table(pool, 1, Pool.INTERACTIVE)
    assert pool.held == {Pool.INTERACTIVE: 3, Pool.BULK: 1}
    assert pool.num_shared(first) == pool.num_shared(second) == 2
    assert pool.share_of(first) == pool.share_of(second) == 2.0
    pool.check_integrity([first, second])
    pool.release(first)
    assert pool.share_of(second) == 3.0
    pool.check_integrity([second])


def test_new_weights_make_everything_unfindable() -> None:
    pool = BlockPool(9, 4)
    held, cached = table(pool, 2, name="h"), table(pool, 2, name="c")
    pool.release(cached)
    pool.forget_names()
    assert pool.find(b"h0") is pool.find(b"c0") is None
    assert (pool.num_free, pool.num_cached) == (6, 0)
    pool.check_integrity([held])


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda p: p.refs.__setitem__(1, 2), "reference counts"),
        (lambda p: p._free.append(1), "lost or made"),
        (lambda p: p._block_of.__setitem__(b"x", 3), "names and blocks"),
        (lambda p: p.held.__setitem__(Pool.BULK, 1), "counts are wrong"),
    ],
)
def test_a_damaged_book_is_noticed(damage: object, match: str) -> None:
    pool = BlockPool(5, 4)
    tables = [table(pool, 2, name="a")]
    pool.check_integrity(tables)
    assert callable(damage)
    damage(pool)
    with pytest.raises(AssertionError, match=match):
        pool.check_integrity(tables)


@given(seed=st.integers(0, 2**32), num_blocks=st.integers(2, 30))
def test_any_order_of_take_share_publish_and_release_adds_up(seed: int, num_blocks: int) -> None:
    rng, pool, tables = random.Random(seed), BlockPool(num_blocks, 4), list[tuple[Pool, list[int]]]()
    for _ in range(80):
        owner, action = rng.choice(list(Pool)), rng.random()
        if action < 0.4:
            tables.append((owner, []))
            for index in range(rng.randint(1, 4)):
                found = pool.find(b"%d" % index) if rng.random() < 0.5 else None
                if found is not None and all(found not in t for _, t in tables[-1:]):
                    pool.share(found, owner)
                    tables[-1][1].append(found)
                elif pool.num_free:
                    tables[-1][1].append(pool.take(owner))
        elif action < 0.7 and tables:
            for index, block in enumerate(rng.choice(tables)[1]):
                if pool.find(b"%d" % index) is None and block not in pool._name_of:
                    pool.publish(block, b"%d" % index)
        elif tables:
            pool.release(tables.pop(rng.randrange(len(tables)))[1])
        pool.check_integrity([t for _, t in tables])

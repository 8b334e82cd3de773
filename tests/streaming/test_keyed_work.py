from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.keyed_work import KeyedWork
from tests.featurestore.rows import PROPERTY


@PROPERTY
@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", None]), st.integers(0, 5)), max_size=40), st.integers(1, 6)
)
async def test_one_after_the_other_per_key_and_never_more_than_the_limit(
    pieces: list[tuple[bytes | None, int]], limit: int
) -> None:
    work, begun, running, most = KeyedWork(limit), defaultdict[bytes | None, list[int]](list), 0, 0
    active: set[bytes] = set()

    def piece(key: bytes | None, number: int, turns: int):  # type: ignore[no-untyped-def]
        async def run() -> None:
            nonlocal running, most
            begun[key].append(number)
            running += 1
            most = max(most, running)
            if key is not None:
                assert key not in active, "two of one key at once"
                active.add(key)
            for _ in range(turns):
                await asyncio.sleep(0)
            active.discard(key or b"")
            running -= 1

        return run

    for number, (key, turns) in enumerate(pieces):
        work.submit(key, piece(key, number, turns))
    await work.drained()
    assert work.is_idle
    assert most <= limit
    for key in (b"a", b"b", b"c"):
        assert begun[key] == [n for n, (k, _) in enumerate(pieces) if k == key]
    assert len(begun[None]) == sum(key is None for key, _ in pieces)


async def test_keys_do_not_wait_for_each_other() -> None:
    work, held, done = KeyedWork(4), asyncio.Event(), asyncio.Event()

    async def finish() -> None:
        done.set()

    work.submit(b"slow", held.wait)  # type: ignore[arg-type]
    work.submit(b"slow", finish)
    work.submit(b"quick", finish)
    await done.wait()
    held.set()
    await work.drained()


async def test_what_escapes_is_raised_where_it_is_waited_for() -> None:
    work = KeyedWork(1)

    async def fail() -> None:
        raise RuntimeError("a fault of ours")

    work.submit(b"k", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await work.drained()


async def test_cancelled_work_is_given_up() -> None:
    work, never = KeyedWork(1), asyncio.Event()
    for key in (b"a", b"a", b"b"):
        work.submit(key, never.wait)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await work.cancel()
    assert work.is_idle
    await work.drained()

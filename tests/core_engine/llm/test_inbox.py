"""A queue with one reader: in order, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.inbox import Inbox


@given(batches=st.lists(st.lists(st.integers(), max_size=4), max_size=10))
def test_a_reader_gets_every_item_in_order_whenever_it_comes(batches: list[list[int]]) -> None:
    items = [item for batch in batches for item in batch]

    async def run() -> list[int]:
        inbox = Inbox[int]()

        async def read() -> list[int]:
            return [await inbox.get() for _ in items]

        reading = asyncio.create_task(read())
        for batch in batches:
            for item in batch:
                inbox.put(item)
            await asyncio.sleep(0)  # the reader's turn
        return await reading

    assert asyncio.run(run()) == items


async def test_a_reader_that_was_cancelled_takes_nothing_with_it() -> None:
    inbox = Inbox[str]()
    first = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    inbox.put("kept")
    assert not inbox.is_empty
    assert await inbox.get() == "kept"
    assert inbox.is_empty


async def test_an_item_that_comes_as_its_reader_is_cancelled_is_still_there() -> None:
    inbox = Inbox[str]()
    reading = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put("kept")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await inbox.get() == "kept"

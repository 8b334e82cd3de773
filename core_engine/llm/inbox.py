"""What the engine has told of one attempt and its caller has not read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue of any length with one reader, in one event loop.

    Every token of every stream goes through one: `asyncio.Queue`, which serves many readers, took three times as long.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._arrival: asyncio.Future[None] | None = None  # what the reader waits for

    @property
    def is_empty(self) -> bool:
        return not self._items

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> T:
        """The oldest item; waits for one. Cancelled while it waits, it takes none."""
        while not self._items:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._items.popleft()

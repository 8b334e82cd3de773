"""Runs work side by side, but one after the other, in the order submitted, for each key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, TypeAlias

AGAIN_S = 0.1
Work: TypeAlias = Callable[[], Awaitable[None]]


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel `tasks` until every one has ended.

    Once is not enough: redis-py (8.1) swallows a cancellation that comes while it opens a connection.
    """
    while pending := {task for task in tasks if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=AGAIN_S)


class KeyedWork:
    """At most `limit` pieces of work run at one time. Work must handle its own errors; one that escapes is raised by
    `drained`."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._queues: dict[Hashable, deque[Work]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    @property
    def is_idle(self) -> bool:
        return not self._queues

    def submit(self, key: Hashable | None, work: Work) -> None:
        """Run `work` after all that was submitted under `key`; None is a key of its own each time."""
        key = object() if key is None else key
        if key in self._queues:
            self._queues[key].append(work)
            return
        self._queues[key] = deque([work])
        task = asyncio.create_task(self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def drained(self) -> None:
        """Wait until everything submitted has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._errors:
            raise self._errors[0]

    async def cancel(self) -> None:
        """Give up what waits and what runs."""
        await cancelled(self._tasks)
        self._queues.clear()

    async def _run(self, key: Hashable) -> None:
        queue = self._queues[key]
        try:
            while queue:
                async with self._slots:
                    await queue.popleft()()
        finally:
            self._queues.pop(key, None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

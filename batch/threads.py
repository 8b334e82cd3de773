"""Blocking work beside the event loop, which must go on reading the engine's heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancelled caller waits for its end first, so that nothing goes on behind its back."""
    future = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        if not future.cancelled():
            future.exception()  # seen: the cancellation is what the caller hears of
        raise

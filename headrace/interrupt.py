"""Runs a command's work so that Ctrl-C and SIGTERM end it in order: cancelled once, everything it holds is released."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def run(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    """Run `work` to its end; returns the signal that cut it short, if one did. Further signals change nothing."""
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        if not received:
            task.cancel()
        received.append(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
        return received[0]
    return None

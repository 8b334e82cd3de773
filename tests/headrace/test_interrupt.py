from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headrace import interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_work_once_and_lets_it_release(number: signal.Signals) -> None:
    released: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), number)  # an impatient user
            await asyncio.sleep(0.05)
            released.append("all")

    assert interrupt.run(work()) is number
    assert released == ["all"]


def test_work_that_ends_was_not_interrupted() -> None:
    async def work() -> None:
        pass

    assert interrupt.run(work()) is None


def test_what_the_work_raises_comes_out() -> None:
    async def work() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        interrupt.run(work())

from __future__ import annotations

import asyncio
import threading

import pytest

from batch.threads import in_thread


async def test_the_result_and_the_error_come_back() -> None:
    assert await in_thread(lambda: threading.current_thread() is not threading.main_thread())
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_waits_for_the_end_of_the_work(*, fails: bool) -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(60)
        ended.set()
        if fails:
            raise ValueError("nobody waits for this any more")

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(started.wait)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()

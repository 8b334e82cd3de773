from __future__ import annotations

import asyncio
import time

from core_engine.pools.pulse import Pulse


async def test_silence_is_noticed() -> None:
    await Pulse(lost_after_s=0.01).lost()


async def test_a_parent_that_stalls_does_not_take_its_child_for_dead() -> None:
    pulse = Pulse(lost_after_s=0.5)
    lost = asyncio.create_task(pulse.lost())
    await asyncio.sleep(0)
    stall(2.0)  # the child's beats wait in the socket meanwhile
    await asyncio.sleep(0)
    pulse.beat()
    assert not lost.done()
    await lost  # and silence after that is noticed


def stall(seconds: float) -> None:
    time.sleep(seconds)

"""The client refuses by itself what cannot be in time: the engine never hears of it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from core_engine.contracts import GenerateRequest, Head, HeadKind, Pool
from core_engine.errors import DeadlineExceeded, EngineRefused
from core_engine.llm.client import EngineClient
from core_engine.llm.step_time import StepTime
from tests.core_engine.llm.running import Gate, running
from tests.core_engine.llm.tiny import request, tiny_engine
from tests.deadlines import always_left

SLOW = StepTime(a=0.5, b=0.0, c=0.0, d=0.0, e=0.0)  # what the engine says of itself; in truth it is far faster


def within(budget_s: float, max_tokens: int = 8) -> GenerateRequest:
    return request(max_tokens=max_tokens, deadline=always_left(budget_s))


async def collect(client: EngineClient, asked: GenerateRequest) -> list[int]:
    return [token async for delta in client.generate(asked) for token in delta.token_ids]


async def test_a_completion_that_cannot_be_in_time_is_refused_before_it_is_sent() -> None:
    engine = tiny_engine()
    engine.scheduler.step_time = SLOW
    async with running(engine) as (client, served):
        with pytest.raises(EngineRefused, match=r"finish in 4\.000 s .* are left: 3 prompt and 8 completion"):
            await collect(client, within(3.0))
        assert len(await collect(client, within(30.0))) == 8
        counters = served.engine.scheduler.counters[Pool.INTERACTIVE]
        assert (counters.admitted, counters.refused) == (1, {})


async def test_a_head_that_cannot_be_in_time_is_refused_before_it_is_sent() -> None:
    engine = tiny_engine()
    engine.scheduler.step_time = SLOW
    async with running(engine) as (client, served):
        asked = dataclasses.replace(within(0.4), head=Head(HeadKind.EMBED))
        with pytest.raises(EngineRefused, match=r"first token in 0\.500 s"):
            await client.head(asked)
        assert served.engine.scheduler.counters[Pool.INTERACTIVE].admitted == 0


async def test_heads_that_miss_what_was_forecast_make_the_next_one_ask_for_more_room() -> None:
    engine = tiny_engine()
    engine.scheduler.step_time = dataclasses.replace(SLOW, a=0.001)
    async with running(engine) as (client, served):
        gate = Gate(served)  # no step: nobody is in time
        for _ in range(10):
            late = dataclasses.replace(within(0.02), head=Head(HeadKind.EMBED))
            with pytest.raises((DeadlineExceeded, EngineRefused)):
                await client.head(late)
        gate.open()
        with pytest.raises(EngineRefused, match=r"predicted to finish in .* s and up to 0\.\d+ s later"):
            await client.head(dataclasses.replace(within(0.0011), head=Head(HeadKind.EMBED)))


async def test_without_a_deadline_nothing_is_refused_however_long_it_takes() -> None:
    engine = tiny_engine()
    engine.scheduler.step_time = StepTime(a=50.0, b=0.0, c=0.0, d=0.0, e=0.0)
    async with running(engine) as (client, _):
        assert len(await collect(client, request(max_tokens=8))) == 8


async def test_what_was_sent_before_counts_though_no_snapshot_shows_it() -> None:
    engine = tiny_engine()
    engine.scheduler.step_time = dataclasses.replace(SLOW, b=0.1)
    async with running(engine) as (client, served):
        gate = Gate(served)  # no step, so that nothing becomes less
        sent = [asyncio.create_task(collect(client, request([5] * 40, max_tokens=2))) for _ in range(5)]
        await asyncio.sleep(0)  # each runs up to where it waits for the engine
        with pytest.raises(EngineRefused, match=r"behind 5 waiting interactive requests with 200 prompt tokens"):
            await collect(client, within(10.0))
        gate.open()
        assert [len(tokens) for tokens in await asyncio.gather(*sent)] == [2] * 5

"""The fake engine tells the real client what the real engine would, one token per stream and step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.door.fake_engine import FakeEngine, Pace, Steps
from core_engine.contracts import Deadline, FinishReason, GenerateRequest, SamplingParams, TokenDelta
from core_engine.llm.client import EngineClient
from headrace.runtime import socket_folder

IDS = (5, 6, 7)
RATE = 1000.0


@asynccontextmanager
async def engine(folder: Path, num_streams: int) -> AsyncIterator[tuple[EngineClient, asyncio.Task[Steps]]]:
    """A client of a fake engine that serves `num_streams` streams; the task ends with them."""
    with socket_folder(folder / "sockets") as sockets:
        endpoint = f"ipc://{sockets / 'engine.sock'}"
        fake, client = FakeEngine(endpoint), EngineClient(endpoint, lost_after_s=30.0)
        serving = asyncio.create_task(asyncio.to_thread(fake.serve, Pace(num_streams, RATE, IDS)))
        await client.start()
        try:
            await client.wait_available(30.0)
            yield client, serving
            await serving
        finally:
            await client.close()
            fake.close()


def asked(attempt_id: str, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(attempt_id, (1, 2), SamplingParams(max_tokens=max_tokens), Deadline.never())


async def read(client: EngineClient, request: GenerateRequest) -> list[TokenDelta]:
    return [delta async for delta in client.generate(request)]


async def test_each_stream_has_a_token_of_every_step_and_ends_at_its_length(tmp_path: Path) -> None:
    async with engine(tmp_path, 2) as (client, serving):
        short, long = await asyncio.gather(read(client, asked("a", 2)), read(client, asked("b", 5)))
        steps = await serving
    assert [delta.token_ids for delta in short] == [(5,), (6,)]
    assert [delta.token_ids for delta in long] == [(5,), (6,), (7,), (5,), (6,)]
    assert [delta.finish_reason for delta in long] == [None] * 4 + [FinishReason.LENGTH]
    assert [delta.usage is not None for delta in long] == [True, False, False, False, True]
    assert len(steps.sent_s) == 5
    assert list(steps.sent_s) == sorted(steps.sent_s)


async def test_a_stream_that_its_client_leaves_is_over(tmp_path: Path) -> None:
    async with engine(tmp_path, 1) as (client, serving):
        stream = client.generate(asked("a", 1 << 40))
        await anext(stream)
        await stream.aclose()
        assert (await serving).sent_s


def test_a_step_takes_as_long_as_all_streams_need_for_a_token_at_the_rate() -> None:
    assert Pace(256, 20_000.0, IDS).step_s == 256 / 20_000

"""Streams one notice through the OpenAI-compatible route while a bulk generation runs beside it in the same engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import pairwise

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat import ChatCompletionChunk

from core_engine.contracts import Deadline, GenerateRequest, Path, Pool, SamplingParams
from core_engine.llm.client import EngineClient
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings
from headrace import wheels
from headrace.demo.load import DemoFailed
from headrace.demo.summary import Notice, quantile

MODEL = "flight_notice"
MAX_TOKENS = 80
BULK_PROMPT = "Write a long report on how weather at an airport turns into delays through the day.\n\n"
ENGINE_S = 30.0


class Bulk:
    """A generation in the bulk pool; `num_tokens` grows as they come."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.started = asyncio.Event()

    async def run(self, client: EngineClient, prompt: list[int], max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = GenerateRequest(
            attempt_id=uuid.uuid4().hex,
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            deadline=Deadline.never(),
            pool=Pool.BULK,
            predictor="demo_bulk",
            path=Path.BATCH,
        )
        async with aclosing(client.generate(request)) as deltas:
            async for delta in deltas:
                self.num_tokens += len(delta.token_ids)
                self.started.set()


@asynccontextmanager
async def bulk_running(settings: EngineSettings) -> AsyncIterator[Bulk]:
    """A bulk generation that has produced its first token when the context is entered, and is aborted at its end."""
    assert settings.endpoint is not None, "the stack gives one"
    tokenizer = await asyncio.to_thread(Tokenizer.from_path, wheels.model_file(settings))
    prompt, bulk = tokenizer.encode(BULK_PROMPT), Bulk()
    client = EngineClient(settings.endpoint, lost_after_s=settings.lost_after_s)
    await client.start()
    try:
        await client.wait_available(ENGINE_S)
        running = asyncio.create_task(bulk.run(client, prompt, settings.max_context_tokens - len(prompt)))
        started = asyncio.create_task(bulk.started.wait())
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        try:
            yield bulk
        finally:
            for task in (running, started):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    finally:
        await client.close()


async def stream_notice(url: str, request: str, bulk: Bulk, dtype: str, show: Callable[[str], None]) -> Notice:
    """Ask for one notice; `show` gets each piece of text as it arrives.

    Raises:
        DemoFailed: the stream broke, or ended without text or without saying why it ended.
    """
    arrivals: list[float] = []
    finish_reason, tokens = None, 0
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        before, start = bulk.num_tokens, time.monotonic()
        async for chunk in _chunks(client, request):
            for choice in chunk.choices:
                if choice.delta.content:
                    arrivals.append(time.monotonic())
                    show(choice.delta.content)
                finish_reason = choice.finish_reason or finish_reason
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    if not arrivals or finish_reason not in ("stop", "length"):
        raise DemoFailed(f"the stream of {MODEL} brought {len(arrivals)} pieces and finish_reason {finish_reason!r}")
    return Notice(
        tokens=tokens,
        ttft_ms=(arrivals[0] - start) * 1e3,
        itl_p50_ms=quantile([(later - earlier) * 1e3 for earlier, later in pairwise(arrivals)], 0.5),
        bulk_tokens=bulk.num_tokens - before,
        dtype=dtype,
    )


async def _chunks(client: AsyncOpenAI, request: str) -> AsyncIterator[ChatCompletionChunk]:
    try:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": request}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            yield chunk
    except OpenAIError as error:
        raise DemoFailed(f"the stream of {MODEL} broke: {error}") from None

"""Several completions side by side: one attempt each, merged into one stream as they come.

Those of one prompt share its KV blocks through the prefix cache like any other requests of one tenant, so nothing here
knows of it. Runs in the caller's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Items
from contextlib import aclosing
from dataclasses import replace

import msgspec

from core_engine.contracts import GenerateRequest
from core_engine.llm.text import TextDelta

MAX_CHOICES = 128


class ChoiceDelta(msgspec.Struct, frozen=True):
    """New text of choice `index`."""

    index: int
    delta: TextDelta


def choice(request: GenerateRequest, index: int) -> GenerateRequest:
    """The request of one choice: attempt `<attempt>.<index>`, seed + index (modulo 2**64) where there is a seed.

    Only the first one asks for the prompt's log-probabilities, which are the same for all.
    """
    sampling = request.sampling
    seed = None if sampling.seed is None else sampling.seed + index
    if seed is not None and seed >= 2**64:
        seed -= 2**64
    own = replace(sampling, seed=seed, prompt_logprobs=sampling.prompt_logprobs if index == 0 else None)
    return replace(request, attempt_id=f"{request.attempt_id}.{index}", sampling=own)


async def merged(streams: Items[AsyncGenerator[TextDelta, None]]) -> AsyncGenerator[ChoiceDelta, None]:
    """Deltas of all `streams` as they come, each one's own in order; a choice's index is its stream's.

    Closing it closes all of them; so does the first error of one, which is raised.
    """
    if len(streams) == 1:  # without a task for each of its tokens
        async with aclosing(streams[0]) as alone:
            async for delta in alone:
                yield ChoiceDelta(0, delta)
        return
    pending = {asyncio.create_task(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index, new = pending[task], task.result()
                del pending[task]
                if new is not None:
                    yield ChoiceDelta(index, new)
                    pending[asyncio.create_task(_next(streams[index]))] = index
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def _next(stream: AsyncGenerator[TextDelta, None]) -> TextDelta | None:
    """None at the end."""
    return await anext(stream, None)

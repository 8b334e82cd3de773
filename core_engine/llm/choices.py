"""Several completions of one prompt: one attempt each, merged into one stream as they come.

They share the prompt's KV blocks through the prefix cache like any other requests of one tenant, so nothing here knows
of it. Runs in the caller's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from core_engine.contracts import GenerateRequest
from core_engine.errors import InvalidRequest
from core_engine.llm.client import EngineClient
from core_engine.llm.text import TextDelta, generate_text
from core_engine.llm.tokenizer import Tokenizer

MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
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


async def generate_choices(
    client: EngineClient, tokenizer: Tokenizer, request: GenerateRequest, n: int
) -> AsyncGenerator[ChoiceDelta, None]:
    """Deltas of `n` completions, each choice's own in order. Closing it aborts what still runs; so does an error.

    Raises:
        InvalidRequest: `n` is out of range. And what `generate_text` raises, of the first choice that fails.
    """
    if not 1 <= n <= MAX_CHOICES:
        expected = f"1 to {MAX_CHOICES}"
        raise InvalidRequest(f"n is {n}, expected {expected}", field="n", value=n, expected=expected)
    streams = [generate_text(client, tokenizer, choice(request, index)) for index in range(n)]
    pending = {asyncio.create_task(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                delta = task.result()
                if delta is not None:
                    yield ChoiceDelta(index, delta)
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

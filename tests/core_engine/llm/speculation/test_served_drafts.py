"""Drafts behind the client and the wire: deltas of several tokens, ends, and a proposer that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Items

import pytest

from core_engine.contracts import FinishReason, GenerateRequest, Pool, SamplingParams, TokenDelta
from core_engine.errors import HeadraceError
from core_engine.llm.client import EngineClient
from core_engine.llm.step_plan import Scheduled
from core_engine.llm.text import generate_text
from tests.core_engine.llm.running import running
from tests.core_engine.llm.speculating import Oracle, speculate
from tests.core_engine.llm.test_client_and_server import collect, idle, tokens
from tests.core_engine.llm.tiny import request, run_all, tiny_engine, tiny_tokenizer


def asked(max_tokens: int = 40, **dials: object) -> GenerateRequest:
    return request((5, 6, 7), sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, **dials))  # type: ignore[arg-type]


async def test_deltas_of_several_tokens_add_up_to_the_completion_with_its_usage_and_counts() -> None:
    requests = [asked(logprobs=1), asked(30)]
    expected = run_all(tiny_engine(), requests)
    engine = tiny_engine()
    speculate(engine, Oracle(expected, wrong_every=7))
    async with running(engine) as (client, served):
        streams = await asyncio.gather(*(collect(client, each) for each in requests))
        await idle(served)
        assert client.snapshot is not None
        counters = client.snapshot.counters[Pool.INTERACTIVE]
    for each, deltas in zip(requests, streams, strict=True):
        assert tokens(deltas) == expected[each.attempt_id]
        assert max(len(delta.token_ids) for delta in deltas) > 2
        usage = deltas[-1].usage
        assert usage is not None
        assert usage.completion_tokens == each.sampling.max_tokens
        told = [entry.token_id for delta in deltas for entry in delta.logprobs or ()]
        assert told == (tokens(deltas) if each.sampling.logprobs is not None else [])
    assert counters.draft_tokens > counters.accepted_tokens > 30
    assert counters.generation_tokens == 70


async def test_a_stop_string_cuts_text_tokens_and_usage_at_the_token_that_completes_it() -> None:
    tokenizer, plain = tiny_tokenizer(), asked()
    completion = run_all(tiny_engine(), [plain])[plain.attempt_id]
    stop = tokenizer.decode(completion[8:10])

    async def text(client: EngineClient, each: GenerateRequest) -> tuple[str, int, int]:
        deltas = [delta async for delta in generate_text(client, tokenizer, each)]
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].usage is not None
        return "".join(d.text for d in deltas), sum(d.num_tokens for d in deltas), deltas[-1].usage.completion_tokens

    ends = []
    for has_drafts in (False, True):
        engine, each = tiny_engine(), asked(stop=(stop,))
        if has_drafts:
            speculate(engine, Oracle({each.attempt_id: completion}), max_tokens=9)
        async with running(engine) as (client, served):
            ends.append(await text(client, each))
            await idle(served)
    assert ends[0] == ends[1]
    assert ends[0][1] == ends[0][2] <= 10


class Broken(Oracle):
    def propose(self, items: Items[Scheduled]) -> list[list[int]]:
        raise RuntimeError("broken on purpose")


async def test_a_proposer_that_breaks_fails_the_step_and_gives_everything_back() -> None:
    engine, each = tiny_engine(), asked()
    speculation = speculate(engine, Broken({each.attempt_id: list(range(3, 60))}))
    async with running(engine) as (client, served):
        with pytest.raises(HeadraceError, match="the step failed: RuntimeError"):
            await collect(client, each)
        await idle(served)
        engine.scheduler.speculation = None
        assert len(tokens(await collect(client, asked(9)))) == 9
    assert speculation.acceptance.num_sequences == 0


async def test_closing_a_stream_between_its_deltas_ends_it_in_the_engine() -> None:
    engine, each = tiny_engine(), asked(200)
    speculate(engine, Oracle({each.attempt_id: list(range(3, 90)) * 3}))
    async with running(engine) as (client, served):
        stream = client.generate(each)
        first: list[TokenDelta] = [await anext(stream), await anext(stream)]
        assert all(delta.finish_reason is None for delta in first)
        await stream.aclose()
        await idle(served)

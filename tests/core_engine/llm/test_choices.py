"""Several choices of one prompt: what separate requests would give, merged as they come, ended together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from core_engine.contracts import Deadline, FinishReason, GenerateRequest, SamplingParams
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm.choices import ChoiceDelta, choice, merged
from core_engine.llm.client import EngineClient
from core_engine.llm.text import TextDelta, generate_text
from tests.core_engine.llm.running import Gate, running
from tests.core_engine.llm.tiny import CONFIG, request, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
WARM = SamplingParams(max_tokens=12, temperature=1.0, seed=5, ignore_eos=True)


def asked(sampling: SamplingParams = WARM, prompt: range = range(3, 20)) -> GenerateRequest:
    return request(prompt, sampling=sampling)


def generate_choices(client: EngineClient, wanted: GenerateRequest, n: int) -> AsyncGenerator[ChoiceDelta, None]:
    return merged([generate_text(client, TOKENIZER, choice(wanted, index)) for index in range(n)])


async def collect(client: EngineClient, wanted: GenerateRequest, n: int) -> dict[int, list[TextDelta]]:
    found: dict[int, list[TextDelta]] = defaultdict(list)
    async for each in generate_choices(client, wanted, n):
        found[each.index].append(each.delta)
    return found


def text(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_the_tokenizer_of_these_tests_has_a_letter_for_every_token() -> None:
    assert TOKENIZER.vocab_size == CONFIG.vocab_size


@pytest.mark.parametrize("n", [1, 2, 5])
async def test_choices_are_what_separate_requests_with_their_seeds_give(n: int) -> None:
    async with running() as (client, _):
        found = await collect(client, asked(), n)
        assert sorted(found) == list(range(n))
        for index, deltas in found.items():
            alone = asked(replace(WARM, seed=5 + index))
            expected = [delta async for delta in generate_text(client, TOKENIZER, alone)]
            assert text(deltas) == text(expected)
            assert [delta.finish_reason for delta in deltas] == [delta.finish_reason for delta in expected]
            assert deltas[-1].usage is not None
            assert deltas[-1].usage.completion_tokens == 12
    assert len({text(deltas) for deltas in found.values()}) == n


async def test_choices_run_side_by_side() -> None:
    all_have_begun = asyncio.Barrier(3)  # one after the other, the first would wait here for ever

    async def held(stream: AsyncGenerator[TextDelta, None]) -> AsyncGenerator[TextDelta, None]:
        yield await anext(stream)
        await all_have_begun.wait()
        async for delta in stream:
            yield delta

    async with running() as (client, _), asyncio.timeout(60):
        streams = [held(generate_text(client, TOKENIZER, choice(asked(), index))) for index in range(3)]
        order = [each.index async for each in merged(streams)]
    assert set(order) == {0, 1, 2}


async def test_one_that_ends_early_leaves_the_others_running() -> None:
    async with running() as (client, _):
        whole = await collect(client, asked(), 3)
        stop = text(whole[1])[3:5]
        found = await collect(client, asked(replace(WARM, stop=(stop,))), 3)
    for index, deltas in found.items():
        before, at, _ = text(whole[index]).partition(stop)
        assert text(deltas) == before
        assert deltas[-1].finish_reason is (FinishReason.STOP if at else FinishReason.LENGTH)
    assert found[1][-1].finish_reason is FinishReason.STOP


async def test_closing_the_stream_aborts_every_choice() -> None:
    long = replace(WARM, max_tokens=200)
    async with running() as (client, served):
        gate = Gate(served, 1)  # or some might be over before they are closed
        async with aclosing(generate_choices(client, asked(long), 4)) as stream:
            await anext(stream)
        gate.open()
        await collect(client, asked(), 1)  # it comes after the aborts on the same socket
        assert [fact.outcome for fact in served.facts] == ["abort"] * 4 + ["length"]
        assert not served.engine.has_work


async def test_the_first_failure_ends_all_and_is_raised() -> None:
    async with running() as (client, served):
        too_long = asked(replace(WARM, max_tokens=10_000))
        with pytest.raises(InvalidRequest, match="10000"):
            await collect(client, too_long, 3)
        late = replace(asked(replace(WARM, max_tokens=200)), deadline=Deadline.after(0.0))
        with pytest.raises(HeadraceError):
            await collect(client, late, 3)
        assert text((await collect(client, asked(), 1))[0])  # and it goes on
        assert not served.engine.has_work


def test_each_choice_has_its_own_id_and_seed_and_the_first_alone_asks_for_the_prompt() -> None:
    whole = asked(replace(WARM, seed=2**64 - 2, prompt_logprobs=3))
    choices = [choice(whole, index) for index in range(4)]
    assert [each.attempt_id for each in choices] == [f"{whole.attempt_id}.{i}" for i in range(4)]
    assert [each.sampling.seed for each in choices] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert [each.sampling.prompt_logprobs for each in choices] == [3, None, None, None]
    assert choice(asked(replace(WARM, seed=None)), 3).sampling.seed is None


async def test_siblings_share_the_blocks_of_their_prompt() -> None:
    async with running() as (client, _):
        found = await collect(client, asked(prompt=range(1, 42)), 4)
    cached = sorted(deltas[-1].usage.cached_tokens for deltas in found.values() if deltas[-1].usage)
    assert cached == [0, 40, 40, 40]  # ten whole blocks of four

"""The official client reads every stream variant, from a real engine: a stream says what the whole reply says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.online.conftest import DoorUnderTest
from tests.online.real_door import MESSAGES, RealDoor, real_door

SEEDED: dict[str, Any] = {"seed": 11, "temperature": 1.0, "max_tokens": 24}
SCHEMA = {
    "type": "object",
    "properties": {"late": {"type": "boolean"}, "gate": {"enum": ["A1", "B2"]}},
    "required": ["late", "gate"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "flight", "strict": True, "schema": SCHEMA}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "two": {"n": 2},
    "five": {"n": 5, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 4, "n": 2},
    "schema": {"response_format": FORMAT, "max_tokens": 80},
    "schemas": {"response_format": FORMAT, "max_tokens": 80, "n": 3, "logprobs": True},
    "any object": {"response_format": {"type": "json_object"}},
    "text": {"response_format": {"type": "text"}},
    "bias": {"logit_bias": {"40": 100, "41": 100}},
    "limit": {"max_tokens": openai.omit, "max_completion_tokens": 7},
}


@pytest.fixture
async def real(door: DoorUnderTest) -> AsyncIterator[RealDoor]:
    async with real_door(door) as real:
        yield real
        await real.quiet()


async def whole_and_chunks(real: RealDoor, **options: Any) -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
    create, asked = real.openai.chat.completions.create, {"model": "tiny", "messages": MESSAGES} | SEEDED | options
    whole: ChatCompletion = await create(**asked)
    streamed = await create(**asked, stream=True, stream_options={"include_usage": True})
    return whole, [chunk async for chunk in streamed]


def texts_of(chunks: list[ChatCompletionChunk]) -> dict[int, str]:
    texts: dict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    return texts


def check_order(chunks: list[ChatCompletionChunk], num_choices: int) -> None:
    """Of each choice: role, content, finish reason; of the stream: usage last, alone."""
    *chunks, closing = chunks
    assert closing.choices == []
    assert closing.usage is not None
    assert all(chunk.usage is None for chunk in chunks)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in [*chunks, closing]}) == 1
    for index in range(num_choices):
        first, *content, last = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
        assert all(each.delta.role is None and each.finish_reason is None for each in content)
        assert (last.delta.role, last.delta.content) == (None, None)
        assert last.finish_reason in ("stop", "length")


def without_cache(usage: CompletionUsage | None) -> tuple[int, int, int]:
    """The second time, the prompt is in the engine's cache."""
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def assert_alike(said: Any, expected: Any) -> None:
    """Equal, numbers to the rounding of a sum that has another order where the prompt is cached."""
    if isinstance(expected, list):
        assert len(said) == len(expected)
        for one, other in zip(said, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, dict):
        assert said.keys() == expected.keys()
        for key, value in expected.items():
            assert_alike(said[key], value)
    else:
        assert said == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
async def test_a_chat_s_stream_says_what_the_whole_reply_says(real: RealDoor, options: dict[str, Any]) -> None:
    num_choices = options.get("n", 1)
    whole, chunks = await whole_and_chunks(real, **options)
    check_order(chunks, num_choices)
    assert [choice.index for choice in whole.choices] == list(range(num_choices))
    assert texts_of(chunks) == {choice.index: choice.message.content for choice in whole.choices}
    reasons = {c.index: c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert without_cache(whole.usage) == without_cache(chunks[-1].usage)
    for choice in whole.choices:
        streamed = [
            entry.model_dump()
            for chunk in chunks
            for c in chunk.choices
            if c.index == choice.index and c.logprobs is not None
            for entry in c.logprobs.content or []
        ]
        told = (choice.logprobs.content or []) if choice.logprobs else []
        assert_alike(streamed, [entry.model_dump() for entry in told])


async def test_choices_differ_and_usage_counts_their_prompt_once(real: RealDoor) -> None:
    endless = {"extra_body": {"ignore_eos": True}}
    one, _ = await whole_and_chunks(real, **endless)
    whole, chunks = await whole_and_chunks(real, n=4, **endless)
    assert len({choice.message.content for choice in whole.choices}) == 4
    assert whole.choices[0].message.content == one.choices[0].message.content
    usage, alone = whole.usage, one.usage
    assert usage is not None
    assert alone is not None
    assert usage.prompt_tokens == alone.prompt_tokens
    assert usage.completion_tokens == 4 * alone.completion_tokens
    again = chunks[-1].usage
    assert again is not None
    assert again.prompt_tokens_details is not None
    assert 0 < (again.prompt_tokens_details.cached_tokens or 0) <= again.prompt_tokens


async def test_what_siblings_share_was_not_there_before(real: RealDoor) -> None:
    whole = await real.openai.chat.completions.create(model="tiny", messages=MESSAGES, n=4, max_tokens=4)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    await real.quiet()
    cached = [fact.cached_tokens for fact in real.served.facts]
    assert len(cached) == 4
    assert sum(each > 0 for each in cached) == 3


async def test_logprobs_are_of_every_token_and_spell_the_text(real: RealDoor) -> None:
    whole, _ = await whole_and_chunks(real, logprobs=True, top_logprobs=3)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert whole.usage is not None
    assert len(content) == whole.usage.completion_tokens
    assert bytes(byte for each in content for byte in each.bytes or []).decode("utf-8", "replace") == (
        choice.message.content
    )
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 3 for each in content)
    for each in content:
        ranked = [top.logprob for top in each.top_logprobs]
        assert ranked == sorted(ranked, reverse=True)
        assert each.logprob <= ranked[0]


async def test_a_schema_is_kept_to(real: RealDoor) -> None:
    whole, _ = await whole_and_chunks(real, **VARIANTS["schemas"])
    for choice in whole.choices:
        flight = json.loads(choice.message.content or "")
        assert isinstance(flight["late"], bool)
        assert flight["gate"] in ("A1", "B2")
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"pattern": "("}])
async def test_a_schema_that_cannot_be_compiled_is_the_client_s_bad_request(
    real: RealDoor, schema: dict[str, Any], streamed: bool
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=r"response_format: .*json_schema cannot be used") as caught:
        await real.openai.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            response_format=wanted,  # type: ignore[call-overload]
            stream=streamed,
            n=2,
        )
    assert (caught.value.param, caught.value.type) == ("response_format", "invalid_request_error")


async def test_a_stop_string_ends_one_choice_and_leaves_the_others(real: RealDoor) -> None:
    whole, _ = await whole_and_chunks(real, n=3)
    texts = [choice.message.content or "" for choice in whole.choices]
    stop = texts[1][3:5]
    stopped, chunks = await whole_and_chunks(real, n=3, stop=[stop])
    assert [choice.message.content for choice in stopped.choices] == [text.partition(stop)[0] for text in texts]
    assert texts_of(chunks) == {choice.index: choice.message.content for choice in stopped.choices}
    assert stopped.choices[1].finish_reason == "stop"


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_headrace_block_is_there_when_it_is_asked_for(real: RealDoor, streamed: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "n": 2, "max_tokens": 6}
    asked["extra_body"] = {"headrace": True, "ignore_eos": True}
    if streamed:
        chunks = [chunk async for chunk in await real.openai.chat.completions.create(**asked, stream=True)]
        assert all(chunk.model_extra == {} for chunk in chunks[:-1])
        assert chunks[-1].choices == []
        extra = chunks[-1].model_extra
    else:
        extra = (await real.openai.chat.completions.create(**asked)).model_extra
    assert extra is not None
    block = extra["headrace"]
    assert 0 < block["ttft_ms"] <= block["e2e_ms"]
    assert block["tpot_ms"] > 0
    assert block["queue_ms"] >= 0
    assert block["device_ms"] > 0
    assert block["cost"] is None
    plain = await real.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    assert plain.model_extra == {}


COMPLETIONS: dict[str, dict[str, Any]] = {
    "one": {"prompt": "The gate"},
    "several": {"prompt": ["The gate", "A plane", "ok"]},
    "ids": {"prompt": [40, 41, 42]},
    "many ids": {"prompt": [[40, 41, 42], [50]], "n": 2},
    "logprobs": {"prompt": ["The gate", "ok"], "logprobs": 3},
    "own logprobs": {"prompt": "The gate", "logprobs": 0, "n": 2},
    "greedy": {"prompt": "The gate", "temperature": 0, "stop": "e"},
}


@pytest.mark.parametrize("options", COMPLETIONS.values(), ids=COMPLETIONS.keys())
async def test_a_completion_s_stream_says_what_the_whole_reply_says(real: RealDoor, options: dict[str, Any]) -> None:
    asked = {"model": "tiny"} | SEEDED | options
    whole: Completion = await real.openai.completions.create(**asked)
    streamed = await real.lenient.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, closing = [chunk async for chunk in streamed]
    assert closing.choices == []
    assert without_cache(closing.usage) == without_cache(whole.usage)
    assert [choice.index for choice in whole.choices] == list(range(len(whole.choices)))
    for choice in whole.choices:
        *content, last = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert all(each.finish_reason is None for each in content)
        assert (last.text, last.finish_reason) == ("", choice.finish_reason)
        assert "".join(each.text for each in content) == choice.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            said = [getattr(each.logprobs, name) for each in content if each.logprobs is not None]
            expected = getattr(choice.logprobs, name) if choice.logprobs else None
            assert_alike([part for parts in said for part in parts or []], expected or [])


async def test_each_prompt_is_answered_as_if_it_were_alone(real: RealDoor) -> None:
    prompts = ["The gate", "A plane", "ok"]
    together = await real.openai.completions.create(model="tiny", prompt=prompts, n=2, **SEEDED)
    for at, prompt in enumerate(prompts):
        alone = await real.openai.completions.create(model="tiny", prompt=prompt, n=2, **SEEDED)
        assert [c.text for c in alone.choices] == [c.text for c in together.choices[2 * at : 2 * at + 2]]
    assert together.usage is not None
    assert together.usage.prompt_tokens == sum(map(len, prompts))


async def test_offsets_point_at_the_tokens_in_the_text(real: RealDoor) -> None:
    whole = await real.openai.completions.create(model="tiny", prompt="ok", logprobs=2, **SEEDED)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    tokens, offsets = choice.logprobs.tokens or [], choice.logprobs.text_offset or []
    assert len(tokens) == len(offsets) > 0
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith(("bytes:", "#")) or choice.text[offset : offset + len(token)] == token
    for token, top in zip(tokens, choice.logprobs.top_logprobs or [], strict=True):
        assert token in top
        assert len(top) in (2, 3)


async def test_a_completion_has_openai_s_default_length(real: RealDoor) -> None:
    whole = await real.openai.completions.create(model="tiny", prompt="ok", extra_body={"ignore_eos": True})
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (16, "length")
    assert whole.id.startswith("cmpl-")


async def test_a_predictor_is_asked_by_a_chat(real: RealDoor) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions") as caught:
        await real.openai.completions.create(model="notice", prompt="ok")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="known: tiny, notice"):
        await real.openai.completions.create(model="gpt-9", prompt="ok")


async def test_over_the_context_is_the_client_s_bad_request(real: RealDoor) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens") as caught:
        await real.openai.completions.create(model="tiny", prompt=["ok", "x" * 256])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize("field", ["echo", "best_of", "suffix"])
async def test_what_a_completion_does_not_support_is_named(real: RealDoor, field: str) -> None:
    value: Any = {"echo": True, "best_of": 3, "suffix": "."}[field]
    with pytest.raises(openai.BadRequestError, match=f"{field} = .* is not supported") as caught:
        await real.openai.completions.create(model="tiny", prompt="ok", **{field: value})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)

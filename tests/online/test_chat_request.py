"""What a chat request may ask for, and that nothing it asks for is dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import SamplingParams
from core_engine.errors import InvalidRequest, PromptTooLong
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import Predictor
from online.chat_request import chat_sampling, json_schema, prompt_ids, read_chat
from online.openai_bodies import ChatBody
from online.openai_fields import CHAT, WITHOUT_EFFECT
from online.problems import UnsupportedParameter
from tests.core_engine.predictors.doubles import notice_predictor

HELLO = [{"role": "user", "content": "Hello"}]
MAX_CHARS = 100_000


def chat(**body: Any) -> ChatBody:
    return read_chat({"model": "tiny", "messages": HELLO} | body)


def sampling(body: ChatBody, predictor: Predictor | None, num_prompt: int, context_tokens: int) -> SamplingParams:
    return chat_sampling(body, predictor, num_prompt, context_tokens, vocab_size=1000)


def formatted(name: str = "answer", **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": {"type": "object"}} | more}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"headrace": "yes"}, "headrace"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"response_format": formatted(schema="x")}, "response_format.json_schema.schema"),
        ({"response_format": formatted(name="two words")}, "response_format.json_schema.name"),
        ({"response_format": formatted(description="a plan")}, "response_format.json_schema.description"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "one"}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages.0.name"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]}, "messages.0.tool_calls"),
        ({"model": None}, "model"),
    ],
)
def test_absurd_values_are_refused_by_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**body)
    assert caught.value.field == field
    assert caught.value.expected


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"functions": [{}]},
        {"modalities": ["audio"]},
        {"audio": {"voice": "x"}},
        {"prediction": {}},
        {"reasoning_effort": "high"},
        {"store": True},
        {"top_a": 1},
    ],
)
def test_what_is_not_supported_is_refused_by_name_with_400(body: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        chat(**body)
    (name,) = body
    assert caught.value.field == name
    assert name in str(caught.value)
    assert caught.value.status == 400


def test_a_field_with_the_value_it_has_when_left_out_is_taken() -> None:
    for name, values in CHAT.items():
        for value in (None, *values):
            assert chat(**{name: value}) == chat()
    assert chat(**dict.fromkeys(WITHOUT_EFFECT, "anything")) == chat()


def test_sampling_has_openai_s_defaults_and_takes_what_is_given() -> None:
    assert sampling(chat(), None, 10, 100) == SamplingParams(max_tokens=90, temperature=1.0, top_p=1.0)
    given_all = chat(temperature=0, top_p=0.5, top_k=7, ignore_eos=True, seed=-3, stop="x", max_completion_tokens=5)
    assert sampling(given_all, None, 10, 100) == SamplingParams(
        max_tokens=5, temperature=0.0, top_k=7, top_p=0.5, ignore_eos=True, seed=-3, stop=("x",)
    )


@pytest.mark.parametrize(
    ("asked", "num_top"), [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)]
)
def test_logprobs_are_asked_for_with_so_many_others_beside_them(asked: dict[str, Any], num_top: int | None) -> None:
    assert sampling(chat(**asked), None, 1, 9).logprobs == num_top
    assert sampling(chat(logprobs=False, top_logprobs=0), None, 1, 9).logprobs is None


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, '{"type": "object"}'),
        (formatted(strict=True, schema={"type": "integer"}), '{"type": "integer"}'),
        (formatted(strict=False, schema={"enum": ["é"]}), '{"enum": ["\\u00e9"]}'),
    ],
)
def test_a_response_format_is_a_schema_or_none(response_format: Any, schema: str | None) -> None:
    assert json_schema(chat(response_format=response_format)) == schema
    assert sampling(chat(response_format=response_format), None, 1, 9).json_schema == schema


@pytest.mark.parametrize(
    "response_format",
    [{"type": "json_schema"}, formatted() | {"type": "text"}, formatted() | {"type": "json_object"}],
)
def test_a_response_format_at_odds_with_itself_is_refused(response_format: Any) -> None:
    with pytest.raises(InvalidRequest, match="only with it") as caught:
        json_schema(chat(response_format=response_format))
    assert caught.value.field == "response_format"


def test_a_predictor_s_owner_sets_the_default_and_the_ceiling() -> None:
    notice = notice_predictor()
    assert sampling(chat(), notice, 10, 100).max_tokens == 32
    assert sampling(chat(), notice, 90, 100).max_tokens == 10
    assert sampling(chat(max_tokens=32), notice, 10, 100).max_tokens == 32
    with pytest.raises(InvalidRequest, match="allows at most 32"):
        sampling(chat(max_tokens=33), notice, 10, 100)


def test_two_limits_must_agree() -> None:
    assert sampling(chat(max_tokens=5, max_completion_tokens=5), None, 1, 99).max_tokens == 5
    with pytest.raises(InvalidRequest, match="differ"):
        sampling(chat(max_tokens=5, max_completion_tokens=6), None, 1, 99)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(100, None), (101, None), (90, 11), (500, 1)])
def test_over_the_context_says_by_how_much(num_prompt: int, max_tokens: int | None) -> None:
    with pytest.raises(PromptTooLong, match="maximum context length is 100 tokens") as caught:
        sampling(chat(max_tokens=max_tokens), None, num_prompt, 100)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.value == num_prompt + (max_tokens or 1)


async def test_the_platform_s_prompt_stands_before_the_user_s(tokenizer: Tokenizer) -> None:
    messages = [{"role": "developer", "content": "Rhyme."}, *HELLO]
    text = "".join(
        tokenizer.tokens[i] for i in await prompt_ids(chat(messages=messages), notice_predictor(), tokenizer, MAX_CHARS)
    )
    assert text.index("system") < text.index("Be") < text.index("Rhyme") < text.index("Hello")
    assert text.count("<|im_start|>system") == 2
    assert text.endswith("<|im_start|>assistantĊ")


async def test_a_long_conversation_is_tokenised_like_a_short_one(tokenizer: Tokenizer) -> None:
    content = "Hello there. " * 500
    ids = await prompt_ids(chat(messages=[{"role": "user", "content": content}]), None, tokenizer, MAX_CHARS)
    assert ids == tuple(tokenizer.apply_chat_template([{"role": "user", "content": content}]))


async def test_text_parts_are_one_text(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    of_parts = await prompt_ids(chat(messages=[{"role": "user", "content": parts}]), None, tokenizer, MAX_CHARS)
    assert of_parts == await prompt_ids(chat(), None, tokenizer, MAX_CHARS)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (None, "messages.0.content"),
        (5, "messages.0.content"),
        ("\ud83d", "messages.0.content"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "messages.0.content.0"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": 1}], "messages.0.content.1"),
        (["text"], "messages.0.content.0"),
    ],
)
async def test_content_that_is_no_text_is_refused_by_place(tokenizer: Tokenizer, content: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await prompt_ids(chat(messages=[{"role": "user", "content": content}]), None, tokenizer, MAX_CHARS)
    assert caught.value.field == field


async def test_more_characters_than_the_door_takes_are_refused_before_they_are_tokenised(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "x" * 60}, {"role": "user", "content": "y" * 60}]
    assert await prompt_ids(chat(messages=messages), None, tokenizer, 120)
    with pytest.raises(PromptTooLong, match="messages has 120 characters; at most 119 are taken") as caught:
        await prompt_ids(chat(messages=messages), None, tokenizer, 119)
    assert caught.value.field == "messages"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from([*ChatBody.model_fields, *CHAT, *WITHOUT_EFFECT]) | st.text(max_size=6)


@given(st.dictionaries(names, values, max_size=4))
def test_no_body_is_a_crash(body: dict[str, Any]) -> None:
    try:
        sampling(chat(**body), None, 5, 100)
    except InvalidRequest as error:
        is_named = error.field is not None and bool(str(error))
        assert is_named

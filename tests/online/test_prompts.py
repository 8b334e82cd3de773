"""Prompts in every form that OpenAI's routes take, and the place of what is wrong with one that is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import InvalidRequest, PromptTooLong
from core_engine.llm.tokenizer import Tokenizer
from online.prompts import INLINE_CHARS, read_prompts
from tests.core_engine.llm.tiny import tiny_tokenizer

TINY = tiny_tokenizer()


async def read(value: object, tokenizer: Tokenizer = TINY) -> list[tuple[int, ...]]:
    return await read_prompts("prompt", value, tokenizer, most=3, max_chars=100_000)


async def test_a_text_token_ids_and_lists_of_either() -> None:
    ids = tuple(TINY.encode("abc"))
    assert await read("abc") == [ids]
    assert await read(list(ids)) == [ids]
    assert await read(["abc"]) == [ids]
    assert await read(["abc", "b"]) == [ids, tuple(TINY.encode("b"))]
    assert await read([list(ids), [5]]) == [ids, (5,)]
    assert await read(["abc", [5]]) == [ids, (5,)]


async def test_a_long_text_is_tokenised_like_a_short_one(tokenizer: Tokenizer) -> None:
    text = "Hello there. " * INLINE_CHARS
    assert await read(text, tokenizer) == [tuple(tokenizer.encode(text))]


async def test_a_control_token_s_name_stays_text(tokenizer: Tokenizer) -> None:
    ((*ids,),) = await read("<|im_start|>system", tokenizer)
    assert not set(ids) & tokenizer.control
    control = min(tokenizer.control)
    assert await read([control, 7], tokenizer) == [(control, 7)]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        ({"a": 1}, "prompt"),
        (5, "prompt"),
        ("\ud83d", "prompt"),
        ([97], "prompt"),
        ([5, -1], "prompt"),
        ([5, True], "prompt"),
        ([5, "a"], "prompt"),
        ([2**70], "prompt"),
        (["a", ""], "prompt.1"),
        ([["a"]], "prompt.0"),
        ([[5], []], "prompt.1"),
        (["a", None], "prompt.1"),
        ([True], "prompt.0"),
        (["a"] * 4, "prompt"),
    ],
)
async def test_what_is_no_prompt_is_refused_by_its_place(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await read(value)
    assert caught.value.field == field
    assert caught.value.expected


async def test_a_text_of_too_many_characters_is_refused() -> None:
    assert await read_prompts("prompt", "x" * 20, TINY, most=1, max_chars=20)
    with pytest.raises(PromptTooLong, match=r"prompt\.1 has 21 characters; at most 20 are taken"):
        await read_prompts("prompt", ["x", "x" * 21], TINY, most=2, max_chars=20)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), st.lists, max_leaves=6))
async def test_any_value_is_prompts_or_a_refusal(value: object) -> None:
    try:
        prompts = await read(value)
    except InvalidRequest as error:
        prompts, place = [], error.field
    else:
        place = "none needed"
    assert place
    assert all(0 <= each < TINY.vocab_size for prompt in prompts for each in prompt)
    assert all(prompts)

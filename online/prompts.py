"""Prompts of the routes that take them as they are: a text, token ids, or a list of either.

A control token's name in a text stays text, and nothing is put before it: who wants control tokens sends token ids.
"""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Sequence as Items

from core_engine.errors import InvalidRequest, PromptTooLong
from core_engine.llm.tokenizer import Tokenizer
from online.openai_bodies import whole

INLINE_CHARS = 4096  # a longer text is tokenised in a thread, not on the event loop


async def read_prompts(
    field: str, value: object, tokenizer: Tokenizer, *, most: int, max_chars: int
) -> list[tuple[int, ...]]:
    """Token ids of each prompt, one or more, at most `most`.

    Raises:
        InvalidRequest: by its place, what is no text and no token ids, or has no token.
        PromptTooLong: a text of more than `max_chars` characters.
    """
    if not isinstance(value, list) or (value and type(value[0]) in (int, float)):
        return [await _read(field, value, tokenizer, max_chars)]
    if not 1 <= len(value) <= most:
        expected = f"1 to {most} prompts"
        message = f"{field} has {len(value)} prompts; expected {expected}"
        raise InvalidRequest(message, field=field, value=len(value), expected=expected)
    return [await _read(f"{field}.{index}", each, tokenizer, max_chars) for index, each in enumerate(value)]


async def _read(field: str, value: object, tokenizer: Tokenizer, max_chars: int) -> tuple[int, ...]:
    if isinstance(value, str):
        check_text(field, value)
        check_length(field, len(value), max_chars)
        token_ids = await _encode(value, tokenizer)
    else:
        token_ids = _ids(field, value, tokenizer)
    if not token_ids:
        raise InvalidRequest(f"{field} is empty", field=field, value=value, expected="at least one token")
    return tuple(token_ids)


async def _encode(text: str, tokenizer: Tokenizer) -> Items[int]:
    if len(text) <= INLINE_CHARS:
        return tokenizer.encode(text)
    return await asyncio.to_thread(tokenizer.encode, text)


def check_text(field: str, text: str) -> None:
    """Raises `InvalidRequest` for half a character, as a JSON escape may write one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{field} has a lone surrogate, which is no character"
        raise InvalidRequest(message, field=field, value=text, expected="whole characters") from None


def check_length(field: str, num_chars: int, max_chars: int) -> None:
    """Raises `PromptTooLong` before anything is spent on tokenising a text that nobody would serve."""
    if num_chars > max_chars:
        message = f"{field} has {num_chars} characters; at most {max_chars} are taken"
        raise PromptTooLong(message, field=field, value=num_chars, expected=f"at most {max_chars} characters")


def _ids(field: str, value: object, tokenizer: Tokenizer) -> Items[int]:
    given = value if isinstance(value, list) else [None]
    ids = [each for each in map(whole, given) if type(each) is int and 0 <= each < tokenizer.vocab_size]
    if len(ids) == len(given):
        return ids
    expected = f"text, or a list of token ids from 0 to {tokenizer.vocab_size - 1}"
    raise InvalidRequest(
        f"{field} = {reprlib.repr(value)}: expected {expected}", field=field, value=value, expected=expected
    )

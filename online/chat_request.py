"""What a chat request asks for, in the engine's words: checked, templated, tokenised. Nothing is dropped in silence."""

from __future__ import annotations

import asyncio
import json

from core_engine.contracts import SamplingParams
from core_engine.errors import InvalidRequest
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import LMGenerate, Predictor
from online.openai_bodies import ChatBody
from online.openai_fields import CHAT, read_fields
from online.prompts import INLINE_CHARS, check_length, check_text
from online.sampling import Room, check_stream_options, sampling_params

ANY_OBJECT = '{"type": "object"}'


def read_chat(body: dict[str, object]) -> ChatBody:
    """The body as it may be served; raises what `read_fields` raises."""
    chat = read_fields(ChatBody, body, CHAT)
    check_stream_options(chat)
    if chat.top_logprobs and not chat.logprobs:
        message = f"top_logprobs = {chat.top_logprobs} without logprobs; set logprobs to true"
        raise InvalidRequest(message, field="top_logprobs", value=chat.top_logprobs, expected="logprobs = true")
    return chat


async def prompt_ids(
    chat: ChatBody, predictor: Predictor | None, tokenizer: Tokenizer, max_chars: int
) -> tuple[int, ...]:
    """Token ids of the conversation; a predictor's own system prompt stands before the user's messages.

    Raises:
        InvalidRequest: content that is no text, or roles that the model's template refuses.
        PromptTooLong: messages of more than `max_chars` characters together.
    """
    messages = [_message(index, chat) for index in range(len(chat.messages))]
    check_length("messages", sum(len(message["content"]) for message in messages), max_chars)
    if predictor is not None and isinstance(predictor.model, LMGenerate):
        messages.insert(0, {"role": "system", "content": predictor.model.system_prompt})
    if sum(len(message["content"]) for message in messages) <= INLINE_CHARS:
        return tuple(tokenizer.apply_chat_template(messages))
    return tuple(await asyncio.to_thread(tokenizer.apply_chat_template, messages))


def _message(index: int, chat: ChatBody) -> dict[str, str]:
    message, field = chat.messages[index], f"messages.{index}.content"
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if isinstance(content, list):
        content = "".join(_part(f"{field}.{at}", part) for at, part in enumerate(content))
    if not isinstance(content, str):
        raise _no_text(field, message.content)
    check_text(field, content)
    return {"role": role, "content": content}


def _part(field: str, part: object) -> str:
    if isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text":
        text = part["text"]
        if isinstance(text, str):
            return text
    raise _no_text(field, part)


def _no_text(field: str, value: object) -> InvalidRequest:
    expected = 'text, or a list of {"type": "text", "text": ...} parts'
    return InvalidRequest(
        f"{field}: only text is supported; expected {expected}", field=field, value=value, expected=expected
    )


def chat_sampling(
    chat: ChatBody, predictor: Predictor | None, num_prompt: int, context_tokens: int, vocab_size: int
) -> SamplingParams:
    """How to sample. Without max_tokens: the predictor's own, or what the context holds.

    Raises:
        PromptTooLong: prompt and completion do not fit into `context_tokens`.
        InvalidRequest: max_tokens above what the predictor's owner allows, or given twice with two values; and what
            `sampling_params` raises.
    """
    room = Room(context_tokens, _max_tokens(chat, predictor), _declared(predictor), "messages")
    num_top = (chat.top_logprobs or 0) if chat.logprobs else None
    return sampling_params(
        chat, room.max_tokens(num_prompt), vocab_size, num_top=num_top, json_schema=json_schema(chat)
    )


def _declared(predictor: Predictor | None) -> int | None:
    return predictor.model.max_tokens if predictor and isinstance(predictor.model, LMGenerate) else None


def _max_tokens(chat: ChatBody, predictor: Predictor | None) -> int | None:
    given = {limit for limit in (chat.max_tokens, chat.max_completion_tokens) if limit is not None}
    if len(given) > 1:
        message = "max_tokens and max_completion_tokens differ; send one of them"
        raise InvalidRequest(message, field="max_tokens", value=chat.max_tokens, expected="one limit")
    asked, ceiling = next(iter(given), None), _declared(predictor)
    if asked is not None and ceiling is not None and asked > ceiling:
        message = f"max_tokens = {asked}: {chat.model} allows at most {ceiling}"
        raise InvalidRequest(message, field="max_tokens", value=asked, expected=f"at most {ceiling}")
    return asked


def json_schema(chat: ChatBody) -> str | None:
    """The JSON schema that the completion must fit, as JSON; the engine's compiler judges it.

    Raises:
        InvalidRequest: a format without the schema that it needs, or with one that it has no use for.
    """
    wanted = chat.response_format
    if wanted is None:
        return None
    if (wanted.type == "json_schema") != (wanted.json_schema is not None):
        expected = 'a json_schema with the type "json_schema", and only with it'
        message = f"response_format of type {wanted.type!r}: expected {expected}"
        raise InvalidRequest(message, field="response_format", value=wanted.type, expected=expected)
    if wanted.json_schema is None:
        return ANY_OBJECT if wanted.type == "json_object" else None
    try:
        return json.dumps(wanted.json_schema.json_schema)
    except RecursionError:
        field = "response_format.json_schema.schema"
        raise InvalidRequest(f"{field} is nested too deeply", field=field, expected="fewer levels") from None

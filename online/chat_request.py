"""What a chat request asks for, in the engine's words: checked, templated, tokenised. Nothing is dropped in silence.

A field that would change the completion and is not supported is refused by name; one that carries the value it has
when it is left out is taken. `user`, `metadata` and the like never change a completion and are taken as they are.
"""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

from core_engine.contracts import Deadline, GenerateRequest, SamplingParams
from core_engine.errors import InvalidRequest, PromptTooLong
from core_engine.llm.tokenizer import Tokenizer
from core_engine.predictors.declaration import LMGenerate, Predictor
from online.body import parse
from online.problems import UnsupportedParameter
from online.schemas import ChatBody

MAX_STOPS = 4
MAX_STOP_CHARS = 256
INLINE_CHARS = 4096  # a longer prompt is tokenised in a thread, not on the event loop

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A chat request that was understood. `predictor` is None where the base model itself was named."""

    model: str
    predictor: Predictor | None
    request: GenerateRequest
    stream: bool
    include_usage: bool


def read_chat(body: dict[str, object]) -> ChatBody:
    """The body as it may be served.

    Raises:
        UnsupportedParameter: a field that would change the completion and is not supported.
        InvalidRequest: a value out of range or of the wrong kind.
    """
    known = {name: value for name, value in body.items() if _is_ours(name, value)}
    chat = parse(ChatBody, known)
    if chat.stream_options is not None and not chat.stream:
        message = "stream_options is for streams only; set stream to true"
        raise InvalidRequest(message, field="stream_options", expected="stream = true")
    stop_strings(chat)
    return chat


def _is_ours(name: str, value: object) -> bool:
    if name in ChatBody.model_fields:
        return True
    if name in WITHOUT_EFFECT or (name in NEUTRAL and (value is None or value in NEUTRAL[name])):
        return False
    if name in NEUTRAL:
        accepted = " or ".join(["null", *map(str, NEUTRAL[name])])
        message = f"{name} = {reprlib.repr(value)} is not supported; leave it out, or send {accepted}"
        raise UnsupportedParameter(message, field=name, value=value, expected=accepted)
    known = ", ".join(sorted(ChatBody.model_fields))
    message = f"{reprlib.repr(name)} is not supported; known fields: {known}"
    raise UnsupportedParameter(message, field=name, value=value, expected=f"one of: {known}")


def stop_strings(chat: ChatBody) -> tuple[str, ...]:
    stop = [chat.stop] if isinstance(chat.stop, str) else chat.stop
    if stop is None:
        return ()
    expected = f"a string, or up to {MAX_STOPS} of them, of 1 to {MAX_STOP_CHARS} characters"
    is_list = isinstance(stop, list) and len(stop) <= MAX_STOPS
    if not is_list or not all(isinstance(s, str) and 1 <= len(s) <= MAX_STOP_CHARS for s in stop):
        message = f"stop = {reprlib.repr(chat.stop)}: expected {expected}"
        raise InvalidRequest(message, field="stop", value=chat.stop, expected=expected)
    return tuple(stop)


async def prompt_ids(chat: ChatBody, predictor: Predictor | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of the conversation; a predictor's own system prompt stands before the user's messages.

    Raises:
        InvalidRequest: content that is no text, or roles that the model's template refuses.
    """
    messages = [_message(index, chat) for index in range(len(chat.messages))]
    if predictor is not None and isinstance(predictor.model, LMGenerate):
        messages.insert(0, {"role": "system", "content": predictor.model.system_prompt})
    if sum(len(message["content"]) for message in messages) <= INLINE_CHARS:
        return tuple(tokenizer.apply_chat_template(messages))
    return tuple(await asyncio.to_thread(tokenizer.apply_chat_template, messages))


def _message(index: int, chat: ChatBody) -> dict[str, str]:
    message = chat.messages[index]
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if isinstance(content, list):
        content = "".join(_part(f"messages.{index}.content.{at}", part) for at, part in enumerate(content))
    if not isinstance(content, str):
        raise _no_text(f"messages.{index}.content", message.content)
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise _no_text(f"messages.{index}.content", content)
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


def sampling(chat: ChatBody, predictor: Predictor | None, num_prompt: int, context_tokens: int) -> SamplingParams:
    """How to sample, with OpenAI's defaults. Without max_tokens: the predictor's own, or what the context holds.

    Raises:
        PromptTooLong: prompt and completion do not fit into `context_tokens`.
        InvalidRequest: max_tokens above what the predictor's owner allows, or given twice with two values.
    """
    asked = _max_tokens(chat, predictor)
    room = context_tokens - num_prompt
    if room < 1 or (asked or 1) > room:
        raise PromptTooLong(
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{num_prompt + (asked or 1)} tokens ({num_prompt} in the messages, {asked or 1} in the completion). "
            "Please reduce the length of the messages or completion.",
            field="messages",
            value=num_prompt + (asked or 1),
            expected=f"at most {context_tokens} tokens",
        )
    return SamplingParams(
        max_tokens=asked or min(room, _declared(predictor) or room),
        temperature=1.0 if chat.temperature is None else chat.temperature,
        top_k=chat.top_k or 0,
        ignore_eos=chat.ignore_eos is True,
        top_p=1.0 if chat.top_p is None else chat.top_p,
        seed=chat.seed,
        stop=stop_strings(chat),
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


def deadline_of(arrived_s: float, given_ms: float | None, predictor: Predictor | None) -> Deadline:
    """The caller's budget, or the predictor's; the base model alone has none."""
    budget_ms = given_ms if given_ms is not None else (predictor.budget_ms if predictor else None)
    return Deadline.never() if budget_ms is None else Deadline(arrived_s + budget_ms / 1e3)

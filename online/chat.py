"""`POST /v1/chat/completions`, streamed and whole, in the shapes that the official OpenAI client reads.

A stream starts with its first token: an engine that is lost or refuses before it is a plain 503. Lost later, the
stream carries an error event and ends there, without a finish reason that nobody decided and without `[DONE]`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from core_engine.contracts import GenerateRequest, Usage
from core_engine.errors import EngineUnavailable, HeadraceError
from core_engine.llm.text import TextDelta
from online.body import read_json
from online.chat_request import ChatCall, deadline_of, prompt_ids, read_chat, sampling
from online.event_stream import DONE, EventStream, event, while_connected
from online.generation import generation
from online.models import served_model
from online.problems import openai_error_body
from online.request_context import RequestContext, context_of
from online.services import Services, services_of
from online.wire_headers import budget_ms, delivery_key

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """A chat completion by the base model, or by a predictor that generates text, named as `model`."""
    services, context = services_of(request), context_of(request)
    call = await _understand(request, services, context)
    envelope = Envelope(f"chatcmpl-{context.attempt_id}", call.model)
    deltas = generation(call, services, context)
    if not call.stream:
        return await while_connected(request, _whole(envelope, deltas))
    first = await while_connected(request, _first(deltas))
    return EventStream(_chunks(call, envelope, first, deltas), deltas)


async def _understand(request: Request, services: Services, context: RequestContext) -> ChatCall:
    chat = read_chat(await read_json(request, services.http.max_body_bytes))
    predictor = served_model(services, chat.model)
    context.facts.update(model=chat.model, version=predictor.version if predictor else None)
    context.delivery_key = delivery_key(request)
    deadline = deadline_of(context.arrived_s, budget_ms(request), predictor)
    prompt = await prompt_ids(chat, predictor, services.tokenizer)
    welcome = services.client.welcome
    if welcome is None:
        raise EngineUnavailable("no engine answers; try again shortly")
    generate = GenerateRequest(
        attempt_id=context.attempt_id,
        prompt_token_ids=prompt,
        sampling=sampling(chat, predictor, len(prompt), welcome.context_tokens),
        deadline=deadline,
        predictor=predictor.name if predictor else "",
        version=predictor.version if predictor else 0,
        template_tokens=services.system_prompts.template_tokens(predictor, prompt) if predictor else 0,
    )
    include_usage = chat.stream_options is not None and chat.stream_options.include_usage is True
    return ChatCall(chat.model, predictor, generate, chat.stream is True, include_usage)


# -- whole


async def _whole(envelope: Envelope, deltas: AsyncGenerator[TextDelta, None]) -> Response:
    text: list[str] = []
    async with aclosing(deltas):
        async for delta in deltas:
            text.append(delta.text)
            if delta.finish_reason is not None:
                return Response(envelope.completion("".join(text), delta), media_type="application/json")
    raise EngineUnavailable("the engine ended the request without a finish reason")


# -- streamed


async def _first(deltas: AsyncGenerator[TextDelta, None]) -> TextDelta:
    first = await anext(deltas, None)
    if first is None:
        raise EngineUnavailable("the engine ended the request without a token")
    return first


async def _chunks(
    call: ChatCall, envelope: Envelope, first: TextDelta, deltas: AsyncGenerator[TextDelta, None]
) -> AsyncGenerator[bytes, None]:
    """Role, content, finish reason, usage if it was asked for, done. Each in a chunk of its own."""
    usage: dict[str, Any] = {"usage": None} if call.include_usage else {}
    yield envelope.chunk({"role": "assistant", "content": ""}, usage)
    if first.text:
        yield envelope.chunk({"content": first.text}, usage)
    last = first
    try:
        async for delta in deltas:
            last = delta
            if delta.text:
                yield envelope.chunk({"content": delta.text}, usage)
        if last.finish_reason is None:
            raise EngineUnavailable("the engine ended the stream without a finish reason")
    except HeadraceError as error:
        yield event(openai_error_body(error))
        return
    yield envelope.chunk({}, usage, str(last.finish_reason))
    if call.include_usage:
        yield envelope.usage_chunk(last.usage or Usage())
    yield DONE


# -- shapes


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one completion repeats. Nulls are sent: the client's types expect the fields."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def chunk(self, delta: dict[str, str], usage: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(self._object("chat.completion.chunk", [choice]) | usage)

    def usage_chunk(self, usage: Usage) -> bytes:
        return event(self._object("chat.completion.chunk", []) | {"usage": _usage(usage)})

    def completion(self, text: str, last: TextDelta) -> bytes:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": str(last.finish_reason)}
        usage = {"usage": _usage(last.usage or Usage())}
        return msgspec.json.encode(self._object("chat.completion", [choice]) | usage)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }

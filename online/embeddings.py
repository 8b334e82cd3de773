"""`POST /v1/embeddings`: each input's hidden state in the base model, of unit length, by the engine's `embed` head.

Every input is a prompt of its own: several of a request are attempts `<attempt>.<index>`, a few of them at once.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from core_engine.contracts import GenerateRequest, Head, HeadKind, HeadResult, Pooling, SamplingParams
from core_engine.errors import HeadraceError, PromptTooLong
from core_engine.predictors.climb import reason_of
from online.access.streams import streams_of
from online.attempt_facts import attempt_fact
from online.body import read_json
from online.document.bodies import openai_body
from online.document.openai import generation
from online.document.operation import JSON, reply_of
from online.document.replies import EmbeddingReply
from online.event_stream import while_connected
from online.models import check_base_model
from online.openai_bodies import MAX_INPUTS, EmbeddingBody
from online.openai_fields import EMBEDDING, read_fields
from online.prompts import read_prompts
from online.reply_usage import headrace_block
from online.request_context import RequestContext, context_of
from online.services import Services, services_of
from online.text_call import context_tokens, deadline_of
from online.wire_headers import budget_ms, delivery_key

router = APIRouter()
EXAMPLE = {"model": "smollm2-135m-instruct", "input": ["The gate has changed.", "Boarding is delayed."]}
MAX_TOGETHER = 16  # of one request in the engine: a long one leaves room in the queue for others


@router.post(
    "/v1/embeddings",
    openapi_extra=generation(openai_body(EmbeddingBody, EMBEDDING, EXAMPLE), {JSON: reply_of(EmbeddingReply)}),
)
async def embeddings(request: Request) -> Response:
    """Embeddings of a text, of token ids, or of a list of either, in their order."""
    services, context = services_of(request), context_of(request)
    body = read_fields(EmbeddingBody, await read_json(request, services.http.max_body_bytes), EMBEDDING)
    check_base_model(services, body.model)
    context.facts.update(model=body.model)
    context.delivery_key = delivery_key(request)
    prompts = await read_prompts(
        "input", body.input, services.tokenizer, most=MAX_INPUTS, max_chars=services.http.max_prompt_chars
    )
    _check_lengths(prompts, context_tokens(services))
    whole = GenerateRequest(
        attempt_id=context.attempt_id,
        tenant=context.tenant,
        prompt_token_ids=(),
        sampling=SamplingParams(),
        deadline=deadline_of(context.arrived_s, budget_ms(request), None),
        head=Head(HeadKind.EMBED, pooling=Pooling(body.pooling or Pooling.MEAN)),
        traceparent=context.traceparent,
    )
    results = await while_connected(request, _embed_all(_attempts(whole, prompts), services, context))
    reply = _reply(body, results)
    if body.headrace:
        usages = [result.usage for result in results]
        reply["headrace"] = headrace_block(usages, e2e_s=time.monotonic() - context.arrived_s)
    return Response(msgspec.json.encode(reply), media_type="application/json")


def _check_lengths(prompts: Items[tuple[int, ...]], most: int) -> None:
    for index, prompt in enumerate(prompts):
        if len(prompt) > most:
            message = f"This model's maximum context length is {most} tokens; input {index} has {len(prompt)}"
            raise PromptTooLong(message, field="input", value=len(prompt), expected=f"at most {most} tokens")


def _attempts(whole: GenerateRequest, prompts: Items[tuple[int, ...]]) -> list[GenerateRequest]:
    ids = [whole.attempt_id] if len(prompts) == 1 else [f"{whole.attempt_id}.{i}" for i in range(len(prompts))]
    return [replace(whole, attempt_id=own, prompt_token_ids=p) for own, p in zip(ids, prompts, strict=True)]


async def _embed_all(requests: Items[GenerateRequest], services: Services, context: RequestContext) -> list[HeadResult]:
    """In their order, as one stream of their tenant's. The first failure ends all and is raised; so does being
    cancelled."""
    together, num_tokens = asyncio.Semaphore(MAX_TOGETHER), sum(len(r.prompt_token_ids) for r in requests)

    async def embed(request: GenerateRequest) -> HeadResult:
        async with together:
            return await _embed(request, services, context)

    with streams_of(services, requests, lambda: num_tokens, num_streams=1):
        tasks = [asyncio.ensure_future(embed(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _embed(request: GenerateRequest, services: Services, context: RequestContext) -> HeadResult:
    """One input, and its usage fact however it ends."""
    is_answered, reason = False, None
    try:
        result = await services.client.head(request)
        is_answered = True
        return result
    except HeadraceError as error:
        reason = reason_of(error)
        raise
    finally:
        services.spool.write(attempt_fact(request, context, is_answered=is_answered, reason=reason))


def _reply(body: EmbeddingBody, results: Items[HeadResult]) -> dict[str, Any]:
    prompt_tokens = sum(result.usage.prompt_tokens for result in results)
    cached_tokens = sum(result.usage.cached_tokens for result in results)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(result.values, body.encoding_format)}
        for index, result in enumerate(results)
    ]
    usage = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


def _written(values: tuple[float, ...], encoding_format: str | None) -> str | tuple[float, ...]:
    """As numbers, or as little-endian float32 in base64, which is what the official client asks for by default."""
    if encoding_format != "base64":
        return values
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()

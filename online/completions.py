"""`POST /v1/completions`, streamed and whole: what the base model writes after a prompt that is taken as it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from core_engine.contracts import FinishReason, GenerateRequest, TokenLogprob
from core_engine.llm.choices import MAX_CHOICES
from core_engine.llm.text import TextDelta
from core_engine.llm.tokenizer import Tokenizer
from online.body import read_json
from online.document.bodies import openai_body
from online.document.openai import generation, text
from online.document.replies import CompletionChunk, CompletionReply
from online.generation import Generations
from online.logprobs import CompletionLogprobs
from online.models import check_base_model
from online.openai_bodies import CompletionBody
from online.openai_fields import COMPLETION, read_fields
from online.prompts import read_prompts
from online.request_context import RequestContext, context_of
from online.sampling import Room, check_stream_options, sampling_params
from online.services import Services, services_of
from online.text_call import TextCall, context_tokens, deadline_of
from online.text_reply import Choice, TextReply, Told
from online.wire_headers import budget_ms, delivery_key

router = APIRouter()
MAX_TOKENS = 16  # OpenAI's default on this route
EXAMPLE = {"model": "smollm2-135m-instruct", "prompt": "Flight 5132 to Chicago is", "max_tokens": 12}


@router.post(
    "/v1/completions",
    openapi_extra=generation(openai_body(CompletionBody, COMPLETION, EXAMPLE), text(CompletionReply, CompletionChunk)),
)
async def completions(request: Request) -> Response:
    """`n` completions of each prompt. A predictor has a prompt of its own, and is asked by a chat."""
    services, context = services_of(request), context_of(request)
    call = await _understand(request, services, context)
    work = Generations(call, services, context)
    return await TextReply(work, CompletionWording(services.tokenizer)).respond(request)


async def _understand(request: Request, services: Services, context: RequestContext) -> TextCall:
    body = read_completion(await read_json(request, services.http.max_body_bytes))
    check_base_model(services, body.model)
    context.facts.update(model=body.model)
    context.delivery_key = delivery_key(request)
    deadline, tokenizer = deadline_of(context.arrived_s, budget_ms(request), None), services.tokenizer
    prompts = await read_prompts(
        "prompt", body.prompt, tokenizer, most=MAX_CHOICES, max_chars=services.http.max_prompt_chars
    )
    room = Room(context_tokens(services), body.max_tokens, MAX_TOKENS, "prompt")
    requests = [
        GenerateRequest(
            attempt_id=context.attempt_id,
            tenant=context.tenant,
            prompt_token_ids=prompt,
            sampling=sampling_params(body, room.max_tokens(len(prompt)), tokenizer.vocab_size, num_top=body.logprobs),
            deadline=deadline,
        )
        for prompt in prompts
    ]
    return TextCall.of(body, requests, services.http.max_streams)


def read_completion(body: dict[str, object]) -> CompletionBody:
    """The body as it may be served; raises what `read_fields` raises."""
    completion = read_fields(CompletionBody, body, COMPLETION)
    check_stream_options(completion)
    return completion


class CompletionWording:
    id_prefix = "cmpl"
    reply_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._logprobs = defaultdict[int, CompletionLogprobs](partial(CompletionLogprobs, tokenizer))

    def opens(self, index: int) -> None:
        """A completion has no role to begin with."""

    def adds(self, index: int, delta: TextDelta) -> Choice:
        return self._choice(index, delta.text, delta.logprobs, None)

    def ends(self, index: int, reason: FinishReason) -> Choice:
        return self._choice(index, "", None, reason)

    def whole(self, index: int, told: Told, reason: FinishReason) -> Choice:
        return self._choice(index, told.text, told.logprobs, reason)

    def _choice(
        self, index: int, text: str, logprobs: Iterable[TokenLogprob] | None, reason: FinishReason | None
    ) -> Choice:
        said: dict[str, Any] | None = None if logprobs is None else self._logprobs[index].say(logprobs)
        finish_reason = None if reason is None else str(reason)
        return {"index": index, "text": text, "logprobs": said, "finish_reason": finish_reason}

"""`POST /v1/chat/completions`, streamed and whole, in the shapes that the official OpenAI client reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from core_engine.contracts import FinishReason, GenerateRequest, Pool, TokenLogprob
from core_engine.llm.text import TextDelta
from core_engine.llm.tokenizer import Tokenizer
from online.body import read_json
from online.chat_request import chat_sampling, prompt_ids, read_chat
from online.document.bodies import openai_body
from online.document.openai import generation, text
from online.document.replies import ChatChunk, ChatReply
from online.generation import Generations
from online.logprobs import TokenNames, chat_logprobs
from online.models import served_model
from online.openai_bodies import ChatBody
from online.openai_fields import CHAT
from online.request_context import RequestContext, context_of
from online.services import Services, services_of
from online.text_call import TextCall, context_tokens, deadline_of
from online.text_reply import Choice, TextReply, Told
from online.wire_headers import budget_ms, delivery_key

router = APIRouter()
EXAMPLE = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "Say in one sentence that flight 5132 leaves 30 minutes late."}],
    "max_tokens": 40,
}


@router.post(
    "/v1/chat/completions",
    openapi_extra=generation(openai_body(ChatBody, CHAT, EXAMPLE), text(ChatReply, ChatChunk)),
)
async def chat_completions(request: Request) -> Response:
    """A chat completion by the base model, or by a predictor that generates text, named as `model`."""
    services, context = services_of(request), context_of(request)
    call = await _understand(request, services, context)
    work = Generations(call, services, context)
    return await TextReply(work, ChatWording(services.tokenizer)).respond(request)


async def _understand(request: Request, services: Services, context: RequestContext) -> TextCall:
    chat = read_chat(await read_json(request, services.http.max_body_bytes))
    predictor = served_model(services, chat.model)
    context.facts.update(model=chat.model, version=predictor.version if predictor else None)
    context.delivery_key = delivery_key(request)
    deadline, tokenizer = deadline_of(context.arrived_s, budget_ms(request), predictor), services.tokenizer
    prompt = await prompt_ids(chat, predictor, tokenizer, services.http.max_prompt_chars)
    generate = GenerateRequest(
        attempt_id=context.attempt_id,
        tenant=context.tenant,
        prompt_token_ids=prompt,
        sampling=chat_sampling(chat, predictor, len(prompt), context_tokens(services), tokenizer.vocab_size),
        deadline=deadline,
        pool=predictor.pool if predictor else Pool.INTERACTIVE,
        predictor=predictor.name if predictor else "",
        version=predictor.version if predictor else 0,
        template_tokens=services.system_prompts.template_tokens(predictor, prompt) if predictor else 0,
    )
    return TextCall.of(chat, (generate,), services.http.max_streams)


class ChatWording:
    id_prefix = "chatcmpl"
    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._names = TokenNames(tokenizer)

    def opens(self, index: int) -> Choice:
        return self._piece(index, {"role": "assistant", "content": ""})

    def adds(self, index: int, delta: TextDelta) -> Choice:
        return self._piece(index, {"content": delta.text}, delta.logprobs)

    def ends(self, index: int, reason: FinishReason) -> Choice:
        return self._piece(index, {}) | {"finish_reason": str(reason)}

    def whole(self, index: int, told: Told, reason: FinishReason) -> Choice:
        message = {"role": "assistant", "content": told.text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(told.logprobs),
            "finish_reason": str(reason),
        }

    def _piece(self, index: int, delta: dict[str, str], logprobs: Iterable[TokenLogprob] | None = None) -> Choice:
        return {"index": index, "delta": delta, "logprobs": self._logprobs(logprobs), "finish_reason": None}

    def _logprobs(self, logprobs: Iterable[TokenLogprob] | None) -> dict[str, Any] | None:
        return None if logprobs is None else chat_logprobs(self._names, logprobs)

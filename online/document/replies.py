"""The replies of the routes that answer in OpenAI's words, as types. They describe; `text_reply` and others write them.

Unknown fields are forbidden, so that a field that is written and stands nowhere here is a fault that a test finds.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    pass


class CachedTokens(Closed):
    cached_tokens: int


class TextUsage(Closed):
    """A prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class HeadraceTimes(Closed):
    """Asked for by `"headrace": true`. Milliseconds; null where there is nothing to say."""

    ttft_ms: float | None
    tpot_ms: float | None
    queue_ms: float | None
    e2e_ms: float | None
    device_ms: float | None
    cost: None


class WholeText(Closed, kw_only=True):
    id: str
    created: int
    model: str
    usage: TextUsage
    headrace: HeadraceTimes | msgspec.UnsetType = msgspec.UNSET


class TextChunk(Closed, kw_only=True):
    """Of a choice: role (in a chat), text, finish reason. Then, alone, what `include_usage` and `headrace` ask for."""

    id: str
    created: int
    model: str
    usage: TextUsage | msgspec.UnsetType | None = msgspec.UNSET
    headrace: HeadraceTimes | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(Closed):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(Closed):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Closed):
    content: list[ChatLogprob]
    refusal: None


class ChatMessageReply(Closed):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Closed):
    index: int
    message: ChatMessageReply
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatReply(WholeText, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatDelta(Closed):
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(Closed):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class ChatChunk(TextChunk, kw_only=True):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class CompletionLogprobsReply(Closed):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(Closed):
    index: int
    text: str
    logprobs: CompletionLogprobsReply | None
    finish_reason: Literal["stop", "length"]


class CompletionReply(WholeText, kw_only=True):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class CompletionChunkChoice(Closed):
    index: int
    text: str
    logprobs: CompletionLogprobsReply | None
    finish_reason: Literal["stop", "length"] | None


class CompletionChunk(TextChunk, kw_only=True):
    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]


class EmbeddingUsage(Closed):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Embedding(Closed):
    """`embedding`: of unit length; numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingReply(Closed):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    headrace: HeadraceTimes | msgspec.UnsetType = msgspec.UNSET


class Model(Closed):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Closed):
    object: Literal["list"]
    data: list[Model]


OPENAI_REPLIES = (ChatReply, ChatChunk, CompletionReply, CompletionChunk, EmbeddingReply, Model, ModelList)

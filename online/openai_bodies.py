"""The wire types of the OpenAI routes: what of their requests is understood. `openai_fields` says what of the rest is.

`headrace` (say in the reply what it took), `top_k` (0 = off), `min_p`, `repetition_penalty`, `ignore_eos` (exactly so
many tokens as asked for) and `pooling` are not OpenAI's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from core_engine.llm.choices import MAX_CHOICES
from core_engine.llm.validation import MAX_TOP
from online.schemas import WireModel


class StreamOptions(WireModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None  # padding of chunks against a reader of their sizes: not done


class TextBody(WireModel):
    """What a chat and a completion have in common. `sampling` reads `stop` and `logit_bias`."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Any = None
    headrace: bool | None = None


class ChatMessage(WireModel):
    """`content` is text, or a list of `{"type": "text", "text": ...}` parts; `chat_request` reads it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Any


class JsonSchemaFormat(WireModel):
    """`strict` or not, a completion is always what the schema accepts. A description would change the prompt."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    description: None = None


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class ChatBody(TextBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(TextBody):
    """`prompt` is read by `prompts`. `logprobs`: how many of the most likely tokens are wanted beside the one taken."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None


class EmbeddingBody(WireModel):
    """`input` is read by `prompts`."""

    model: str
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    headrace: bool | None = None

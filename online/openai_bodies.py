"""The wire types of the OpenAI routes: what of their requests is understood. `openai_fields` says what of the rest is.

`headrace` (say in the reply what it took), `top_k` (0 = off), `min_p`, `repetition_penalty`, `ignore_eos` (exactly so
many tokens as asked for) and `pooling` are not OpenAI's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from core_engine.llm.choices import MAX_CHOICES
from core_engine.llm.validation import MAX_TOP
from online.schemas import WireModel

MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_INPUTS = 2048  # OpenAI's limit

TEXT = {"type": "string", "minLength": 1}
TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "additionalProperties": False,
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    },
}
STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
STOPS = {"anyOf": [{"type": "null"}, STOP, {"type": "array", "maxItems": MAX_STOPS, "items": STOP}]}
BIAS = {"type": "number", "minimum": -100, "maximum": 100}
BY_TOKEN_ID = {"type": "object", "patternProperties": {"^[0-9]{1,9}$": BIAS}, "additionalProperties": False}
BIASES = {"anyOf": [{"type": "null"}, BY_TOKEN_ID]}


def whole(value: object) -> object:
    """JSON has one kind of number, and JSON Schema's integers are those without a fraction: 1.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)
MaxTokens = Annotated[int, Field(ge=1, lt=2**31), WHOLE]  # bounded: nobody reckons with a thousand digits


def _prompts(most: int) -> WithJsonSchema:
    """A text, token ids, or a list of either, as `prompts` reads them."""
    several = {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": [TEXT, TOKEN_IDS]}}
    return WithJsonSchema({"anyOf": [TEXT, TOKEN_IDS, several]})


class StreamOptions(WireModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None  # padding of chunks against a reader of their sizes: not done


class TextBody(WireModel):
    """What a chat and a completion have in common. The keys of `logit_bias` are token ids."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), WHOLE] | None = None
    max_tokens: MaxTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]] | None, WithJsonSchema(BIASES)] = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stop: Annotated[Any, WithJsonSchema(STOPS)] = None
    headrace: bool | None = None


class ChatMessage(WireModel):
    """`content` is text, or a list of its parts."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, PARTS]})]


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
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP), WHOLE] | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(TextBody):
    """`prompt`: a text, token ids, or a list of either.

    `logprobs`: how many of the most likely tokens are wanted beside the one taken.
    """

    prompt: Annotated[Any, _prompts(MAX_CHOICES)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP), WHOLE] | None = None


class EmbeddingBody(WireModel):
    """`input`: a text, token ids, or a list of either. `pooling`: which hidden states are an embedding."""

    model: str
    input: Annotated[Any, _prompts(MAX_INPUTS)]
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    headrace: bool | None = None

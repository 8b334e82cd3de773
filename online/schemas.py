"""The wire types of the HTTP door. They exist here only and are converted once, by the route that reads them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from core_engine.contracts import FeatureState, Reason, Rung, StageTimes, Usage
from online.wire_headers import MAX_BUDGET_MS


class WireModel(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class PredictBody(WireModel):
    """`budget_ms` is how long the caller waits; without it, and without X-Deadline-Ms, the predictor's own budget."""

    inputs: dict[str, Any]
    budget_ms: Annotated[float, Field(gt=0, le=MAX_BUDGET_MS)] | None = None
    alias: Annotated[str, Field(min_length=1, max_length=64)] = "live"


class FeatureReport(msgspec.Struct, frozen=True):
    """How one feature was found: never its value."""

    state: FeatureState
    age_s: float | None


class PredictReply(msgspec.Struct, frozen=True, kw_only=True):
    predictor: str
    version: int
    value: float | str | None
    scores: dict[str, float]
    rung: Rung
    degraded: bool
    reason: Reason | None
    detail: str | None
    attempt_id: str
    features: dict[str, FeatureReport]
    stages: StageTimes
    usage: Usage


class StoredReply(msgspec.Struct, frozen=True, kw_only=True):
    """A published prediction. `age_s` counts from the instant as of which its job computed; `is_fresh`: it is within
    the age that the predictor declares."""

    predictor: str
    version: int
    entity: str
    value: float | str | None
    generation: str
    age_s: float
    is_fresh: bool


class ChatMessage(WireModel):
    """`content` is text, or a list of `{"type": "text", "text": ...}` parts; `chat_request` reads it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Any


class StreamOptions(WireModel):
    include_usage: bool | None = None


class ChatBody(WireModel):
    """What of OpenAI's chat request is understood. `top_k` (0 = off) and `ignore_eos` (exactly so many tokens as asked
    for) are not OpenAI's; `stop` is read by `chat_request`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Any = None

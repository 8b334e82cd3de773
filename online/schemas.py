"""The wire types of our own routes. They are converted once, by the route that reads or writes them.

Those of the OpenAI routes are in `openai_bodies`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from core_engine.contracts import FeatureState, Reason, Rung, StageBudget, StageTimes, Stored, Usage
from online.wire_headers import MAX_BUDGET_MS


class WireModel(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class PredictBody(WireModel):
    """`budget_ms` is how long the caller waits. Of this, X-Deadline-Ms and the predictor's own budget the tightest
    holds.

    `rungs`, where any are named, are the only ones of the predictor's ladder that may answer: for tests and benchmarks.
    """

    inputs: dict[str, Any]
    budget_ms: Annotated[float, Field(gt=0, le=MAX_BUDGET_MS)] | None = None
    alias: Annotated[str, Field(min_length=1, max_length=64)] = "live"
    rungs: Annotated[list[Literal["model", "precomputed", "student", "prior"]], Field(max_length=4)] = Field(
        default_factory=list
    )


class FeatureReport(msgspec.Struct, frozen=True):
    """How one feature was found: never its value."""

    state: FeatureState
    age_s: float | None


class PredictAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, which rung gave it, and why none above it did."""

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
    stored: Stored | None
    usage: Usage


class PredictReply(PredictAnswer, frozen=True, kw_only=True):
    """The answer, which rung gave it, why none above it did, and where the time went.

    `predict_reply` writes the last two behind the answer: how long writing it took is among them.
    """

    stages: StageTimes
    budget: StageBudget


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


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["alive"] = "alive"


class CatalogueState(msgspec.Struct, frozen=True, kw_only=True):
    """`failure`: why it could not be read again; it is then as old as that."""

    loaded: bool
    failure: str | None


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The rest is there where the engine is."""

    available: bool
    incarnation: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    dtype: str | msgspec.UnsetType = msgspec.UNSET


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    available: bool


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`in_flight`: requests in this door, without this one."""

    status: Literal["ready", "draining", "starting"]
    catalogue: CatalogueState
    engine: EngineState
    store: StoreState
    in_flight: int


OUR_REPLIES = (PredictReply, StoredReply, Alive, Readiness)

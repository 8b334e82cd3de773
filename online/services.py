"""What the routes are given: one object, built by a composition root, and the few words that change while serving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import Request

from core_engine.costs.spool import Spool
from core_engine.llm.client import EngineClient
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.shadow import ShadowTraffic
from core_engine.predictors.system_prompt import SystemPrompts
from core_engine.readers import PredictionReader
from core_engine.settings import HttpSettings
from core_engine.tracing import Tracer
from online.access.gate import Gate


@dataclass(slots=True)
class DoorState:
    """Changed by the server and the middleware only, on the one event loop."""

    draining: bool = False
    in_flight: int = 0
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Services:
    """`ping_store` tells whether the online store answers; it never raises and takes no longer than its own timeout."""

    http: HttpSettings
    model_name: str
    catalogue: Catalogue
    flow: PredictFlow
    predictions: PredictionReader
    shadow: ShadowTraffic
    client: EngineClient
    tokenizer: Tokenizer
    system_prompts: SystemPrompts
    spool: Spool
    metrics: Metrics
    ping_store: Callable[[], Awaitable[bool]]
    gate: Gate = field(default_factory=Gate)
    tracer: Tracer | None = None  # None: nothing is traced
    state: DoorState = field(default_factory=DoorState)


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services

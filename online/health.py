"""`/healthz`: this process lives. `/readyz`: send it work, and what it stands on.

A lost engine or store does not make a door unready: it answers from the lower rungs, which is what it is for.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from online.document.operation import JSON, operation, reply_of
from online.schemas import Alive, CatalogueState, EngineState, Readiness, StoreState
from online.services import Services, services_of

router = APIRouter()
TAG = "probes"


@router.get("/healthz", openapi_extra=operation(TAG, {200: {JSON: reply_of(Alive)}}, (431, 500)))
async def healthz() -> Response:
    """This process lives."""
    return Response(msgspec.json.encode(Alive()), media_type=JSON)


READY = {JSON: reply_of(Readiness)}


@router.get("/readyz", openapi_extra=operation(TAG, {200: READY, 503: READY}, (431, 500)))
async def readyz(request: Request) -> Response:
    """200 once the catalogue was read; 503 before that and while draining."""
    services = services_of(request)
    catalogue, draining = services.catalogue, services.state.draining
    is_ready = catalogue.loaded and not draining
    state = Readiness(
        status="ready" if is_ready else "draining" if draining else "starting",
        catalogue=CatalogueState(loaded=catalogue.loaded, failure=catalogue.failure),
        engine=_engine(services),
        store=StoreState(available=await services.ping_store()),
        in_flight=services.state.in_flight - 1,
    )
    return Response(msgspec.json.encode(state), 200 if is_ready else 503, media_type=JSON)


def _engine(services: Services) -> EngineState:
    welcome = services.client.welcome
    if welcome is None or not services.client.available:
        return EngineState(available=False)
    return EngineState(available=True, incarnation=welcome.incarnation, model=welcome.model, dtype=welcome.dtype)

"""`/healthz`: this process lives. `/readyz`: send it work, and what it stands on.

A lost engine or store does not make a door unready: it answers from the lower rungs, which is what it is for.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from online.services import Services, services_of

router = APIRouter()


@router.get("/healthz")
async def healthz() -> JSONResponse:
    return JSONResponse({"status": "alive"})


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """200 once the catalogue was read; 503 before that and while draining."""
    services = services_of(request)
    catalogue, draining = services.catalogue, services.state.draining
    is_ready = catalogue.loaded and not draining
    body = {
        "status": "ready" if is_ready else "draining" if draining else "starting",
        "catalogue": {"loaded": catalogue.loaded, "failure": catalogue.failure},
        "engine": _engine(services),
        "store": {"available": await services.ping_store()},
        "in_flight": services.state.in_flight - 1,  # without this request
    }
    return JSONResponse(body, status_code=200 if is_ready else 503)


def _engine(services: Services) -> dict[str, Any]:
    welcome = services.client.welcome
    if welcome is None or not services.client.available:
        return {"available": False}
    return {"available": True, "incarnation": welcome.incarnation, "model": welcome.model, "dtype": welcome.dtype}

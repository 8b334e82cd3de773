"""`GET /metrics`: the door's own series, which are those of all its workers, and the engine's as this one sees them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from online.document.operation import operation
from online.services import services_of

router = APIRouter()
PAGE = {"schema": {"type": "string", "description": "Prometheus text exposition format"}}


@router.get("/metrics", openapi_extra=operation("probes", {200: {"text/plain": PAGE}}, (401, 403, 431, 500)))
async def metrics(request: Request) -> Response:
    """The door's series, all of its workers', and the engine's as this process sees them."""
    shown = services_of(request).metrics
    counted = b"" if shown.workers is None else await asyncio.to_thread(shown.render_workers)
    return Response(counted + shown.render(), media_type=CONTENT_TYPE_LATEST)

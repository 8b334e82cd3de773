"""`GET /metrics`: the process's own series, and the engine's as this door sees them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from online.services import services_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(services_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)

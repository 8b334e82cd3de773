"""`GET /metrics`: the process's series, and the engine's as its last snapshot has them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from core_engine.llm.client import EngineClient
from core_engine.metrics import Metrics
from online.services import services_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    services = services_of(request)
    observe_engine(services.metrics, services.client)
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def observe_engine(metrics: Metrics, client: EngineClient) -> None:
    """Set the engine's gauges from its snapshot. The values of a lost engine stay as they were; `engine_up` says so."""
    metrics.engine_up.set(1 if client.available else 0)
    snapshot = client.snapshot
    if snapshot is None:
        return
    metrics.engine_steps.set(snapshot.step)
    for pool, load in (("interactive", snapshot.interactive), ("bulk", snapshot.bulk)):
        metrics.engine_waiting.labels(pool).set(load.waiting)
        metrics.engine_running.labels(pool).set(load.running)
    metrics.engine_free_blocks.set(snapshot.free_blocks)
    metrics.engine_step_seconds.set(snapshot.step_s)
    metrics.engine_predicted_step_seconds.set(snapshot.predicted_step_s)

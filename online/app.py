"""The app: routes, error shapes and two layers around them. It starts nothing of its own: `lifespan` is its owner's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from core_engine.errors import HeadraceError
from online import chat, completions, embeddings, health, metrics, models, predict, predictions
from online.access.layer import AccessLayer
from online.engine_metrics import EngineCollector
from online.problems import on_headrace_error, on_http_exception
from online.request_context import RequestLayer
from online.services import Services


def create_app(services: Services, lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext) -> FastAPI:
    """`lifespan` is entered before the first request and left after the last."""

    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        async with lifespan():
            yield

    app = FastAPI(title="Headrace", version="1", lifespan=run, docs_url=None, redoc_url=None)
    app.state.services = services
    services.metrics.registry.register(EngineCollector(services.client))
    for routes in (predict, predictions, models, chat, completions, embeddings, health, metrics):
        app.include_router(routes.router)
    app.add_exception_handler(HeadraceError, on_headrace_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(AccessLayer, services=services)
    app.add_middleware(RequestLayer, services=services)  # around the other
    return app

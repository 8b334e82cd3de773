"""The app: routes, error shapes and two layers around them. It starts nothing of its own: `lifespan` is its owner's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route

from core_engine.errors import HeadraceError
from online import chat, completions, embeddings, health, metrics, models, predict, predictions
from online.access.layer import AccessLayer
from online.document.openapi import openapi_document
from online.engine_metrics import EngineCollector
from online.express import ExpressLane
from online.problems import on_headrace_error, on_http_exception
from online.request_context import RequestLayer
from online.services import Services


def create_app(services: Services, lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext) -> FastAPI:
    """`lifespan` is entered before the first request and left after the last."""

    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        async with lifespan():
            yield

    app = FastAPI(version="1", lifespan=run, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    describe = partial(openapi_document, app.routes, version=app.version, needs_key=services.gate.needs_key)
    app.openapi = describe  # type: ignore[method-assign]
    services.metrics.page.register(EngineCollector(services.client))  # once, however many workers there are
    for routes in (predict, predictions, models, chat, completions, embeddings, health, metrics):
        app.include_router(routes.router)
    app.add_exception_handler(HeadraceError, on_headrace_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(ExpressLane, route=_route_of(app, predict.predict))
    app.add_middleware(AccessLayer, services=services)
    app.add_middleware(RequestLayer, services=services)  # around the others
    return app


def _route_of(app: FastAPI, endpoint: Callable[..., object]) -> Route:
    return next(route for route in app.routes if isinstance(route, Route) and route.endpoint is endpoint)

"""`GET /v1/models`: what may be named as a model - the base model, and every live predictor that generates text."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.predictors.registry import LIVE
from online.document.openai import models
from online.document.replies import Model, ModelList
from online.problems import UnknownModel
from online.services import Services, services_of

router = APIRouter()
BASE_OWNER = "headrace"
STARTED = int(time.time())


def generators(services: Services) -> dict[str, Predictor]:
    """The live version of every predictor that generates text, by name."""
    view = services.catalogue.view
    live = [view.versions[name, v] for (name, alias), v in sorted(view.aliases.items()) if alias == LIVE]
    return {predictor.name: predictor for predictor in live if isinstance(predictor.model, LMGenerate)}


def served_model(services: Services, name: str) -> Predictor | None:
    """The predictor named as a model; None for the base model itself.

    Raises:
        UnknownModel: the message lists the known ones.
    """
    predictors = generators(services)
    if name == services.model_name:
        return None
    if name not in predictors:
        known = ", ".join([services.model_name, *predictors])
        message = f"The model {name[:80]!r} does not exist; known: {known}"
        raise UnknownModel(message, field="model", value=name, expected=f"one of: {known}")
    return predictors[name]


def check_base_model(services: Services, name: str) -> None:
    """For routes that take a prompt as it is.

    Raises:
        UnknownModel: not the base model: nothing by this name, or a predictor, whose prompt is its own.
    """
    if served_model(services, name) is not None:
        message = f"The model {name[:80]!r} has a prompt of its own: ask it by /v1/chat/completions"
        raise UnknownModel(message, field="model", value=name, expected=services.model_name)


@router.get("/v1/models", openapi_extra=models(ModelList))
async def list_models(request: Request) -> JSONResponse:
    """What may be named as a model."""
    services = services_of(request)
    owners = {services.model_name: BASE_OWNER} | {p.name: p.owner for p in generators(services).values()}
    return JSONResponse({"object": "list", "data": [_model(name, owner) for name, owner in owners.items()]})


@router.get("/v1/models/{model:path}", openapi_extra=models(Model, 404))
async def retrieve_model(model: str, request: Request) -> JSONResponse:
    """The model of this name, if there is one."""
    predictor = served_model(services_of(request), model)
    return JSONResponse(_model(model, predictor.owner if predictor else BASE_OWNER))


def _model(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": owner}

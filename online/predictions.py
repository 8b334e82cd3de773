"""`GET /v1/predictions/{predictor}/{entity}`: what a batch job published, read from one generation."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from core_engine.contracts import Deadline
from core_engine.errors import UnknownName
from online.document.errors import GUARDED
from online.document.headers import DEADLINE
from online.document.operation import JSON, operation, reply_of
from online.request_context import context_of
from online.schemas import StoredReply
from online.services import services_of
from online.wire_headers import budget_ms

router = APIRouter()
LOOKUP_MS = 1_000.0  # where the caller does not say how long it waits


class NotStored(UnknownName):
    code = "not_stored"


@router.get(
    "/v1/predictions/{predictor}/{entity}",
    openapi_extra=operation(
        "predictions", {200: {JSON: reply_of(StoredReply)}}, (*GUARDED, 404, 422, 504), asked=(DEADLINE,)
    ),
)
async def lookup(predictor: str, entity: str, request: Request) -> Response:
    """The value of `entity` in the generation that the live version serves now, with its age. Too old is still told."""
    services, context = services_of(request), context_of(request)
    context.facts["predictor"] = "unknown"
    chosen = services.catalogue.resolve(predictor)
    context.facts.update(predictor=chosen.name, version=chosen.version)
    deadline = Deadline(context.arrived_s + (budget_ms(request) or LOOKUP_MS) / 1e3)
    stored = await services.predictions.lookup(chosen.id, entity, deadline)
    if stored is None:
        message = f"no prediction of {chosen.name} is published for {entity[:80]!r}"
        raise NotStored(message, field="entity", value=entity, expected="an entity of the published generation")
    context.facts["generation"] = stored.generation
    reply = StoredReply(
        predictor=chosen.name,
        version=chosen.version,
        entity=entity,
        value=stored.value,
        generation=stored.generation,
        age_s=stored.age_s,
        is_fresh=chosen.precomputed is None or stored.age_s <= chosen.precomputed.max_age_s,
    )
    return Response(msgspec.json.encode(reply), media_type=JSON)

"""`POST /v1/predict/{predictor}`: JSON to a `PredictRequest`, and a `Prediction` back. No decision is made here."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response
from starlette.background import BackgroundTask

from core_engine.contracts import Deadline, Prediction, PredictRequest, Rung
from core_engine.errors import QuotaExceeded
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.shadow import ShadowTraffic
from online.body import parse, read_json
from online.document.bodies import schema_of
from online.document.errors import GUARDED, WITH_BODY
from online.document.headers import DEADLINE, DELIVERY, SERVER_TIMING
from online.document.operation import JSON, operation, reply_of
from online.predict_reply import predict_reply
from online.request_context import context_of
from online.schemas import PredictBody, PredictReply
from online.services import Services, services_of
from online.wire_headers import budget_ms, delivery_key

router = APIRouter()
EXAMPLE_INPUTS = {
    "carrier": "UA",
    "origin": "EWR",
    "dest": "ORD",
    "scheduled_departure": "2026-12-01T09:00:00-05:00",
}
EXAMPLES = {
    "least": {"summary": "By the live version, within its own budget", "value": {"inputs": EXAMPLE_INPUTS}},
    "in time": {"summary": "The caller waits 30 ms", "value": {"inputs": EXAMPLE_INPUTS, "budget_ms": 30}},
    "one rung": {"summary": "By the student alone", "value": {"inputs": EXAMPLE_INPUTS, "rungs": ["student"]}},
}
OPERATION = operation(
    "predictions",
    {200: {JSON: reply_of(PredictReply)}},
    (*GUARDED, *WITH_BODY, 404, 422),
    body={"schema": schema_of(PredictBody), "examples": EXAMPLES},
    asked=(DEADLINE, DELIVERY),
    answered=SERVER_TIMING,
)


@router.post("/v1/predict/{predictor}", openapi_extra=OPERATION)
async def predict(predictor: str, request: Request) -> Response:
    """A prediction within the caller's budget. The answer names the rung that gave it and why none above it did."""
    services, context = services_of(request), context_of(request)
    context.facts["predictor"] = "unknown"
    body = parse(PredictBody, await read_json(request, services.http.max_body_bytes))
    chosen = services.catalogue.choose(predictor, body.inputs, alias=body.alias)
    context.facts.update(predictor=chosen.name, version=chosen.version)
    given_ms = [ms for ms in (budget_ms(request), body.budget_ms, chosen.budget_ms) if ms is not None]
    context.delivery_key = delivery_key(request)
    deadline = Deadline(context.arrived_s + min(given_ms) / 1e3)
    asked = PredictRequest(
        predictor=chosen.name,
        inputs=body.inputs,
        attempt_id=context.attempt_id,
        deadline=deadline,
        tenant=context.tenant,
        alias=body.alias,
        delivery_key=context.delivery_key,
        rungs=tuple(Rung(name) for name in body.rungs),
        traceparent=context.traceparent,
    )
    started_s = time.monotonic()
    prediction = await _predicted(services, chosen, asked)
    context.facts.update(rung=str(prediction.rung), reason=str(prediction.reason) if prediction.reason else None)
    reply = predict_reply(prediction, context, deadline, started_s, services.metrics)
    reply.background = BackgroundTask(_follow, services.shadow, asked, prediction)
    return reply


async def _predicted(services: Services, chosen: Predictor, asked: PredictRequest) -> Prediction:
    try:
        return await services.flow.predict(chosen, asked)
    except QuotaExceeded as error:
        services.metrics.access.labels(asked.tenant, error.quota).inc()
        raise


async def _follow(shadow: ShadowTraffic, asked: PredictRequest, prediction: Prediction) -> None:
    """After the reply is sent. A coroutine, because a plain function would be run in a thread."""
    shadow.offer(asked, prediction)

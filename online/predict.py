"""`POST /v1/predict/{predictor}`: JSON to a `PredictRequest`, a `Prediction` to JSON. No decision is made here."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from core_engine.contracts import Deadline, Prediction, PredictRequest, StageTimes
from online.body import parse, read_json
from online.request_context import RequestContext, context_of
from online.schemas import FeatureReport, PredictBody, PredictReply
from online.services import services_of
from online.wire_headers import budget_ms, delivery_key

router = APIRouter()
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": PredictBody.model_json_schema()}}}}


@router.post("/v1/predict/{predictor}", openapi_extra=BODY)
async def predict(predictor: str, request: Request) -> Response:
    """A prediction within the caller's budget. The answer names the rung that gave it and why none above it did."""
    services, context = services_of(request), context_of(request)
    context.facts["predictor"] = "unknown"
    body = parse(PredictBody, await read_json(request, services.http.max_body_bytes))
    chosen = services.catalogue.resolve(predictor, alias=body.alias)
    context.facts.update(predictor=chosen.name, version=chosen.version)
    given_ms = [budget for budget in (budget_ms(request), body.budget_ms) if budget is not None]
    context.delivery_key = delivery_key(request)
    deadline = Deadline(context.arrived_s + min(given_ms, default=chosen.budget_ms) / 1e3)
    prediction = await services.flow.predict(
        chosen,
        PredictRequest(
            predictor=chosen.name,
            inputs=body.inputs,
            attempt_id=context.attempt_id,
            deadline=deadline,
            alias=body.alias,
            delivery_key=context.delivery_key,
        ),
    )
    context.facts.update(rung=str(prediction.rung), reason=str(prediction.reason) if prediction.reason else None)
    return _reply(prediction, context)


def _reply(prediction: Prediction, context: RequestContext) -> Response:
    ages = prediction.feature_ages_s
    reply = PredictReply(
        predictor=prediction.predictor,
        version=prediction.version,
        value=prediction.value,
        scores=dict(prediction.scores),
        rung=prediction.rung,
        degraded=prediction.degraded,
        reason=prediction.reason,
        detail=prediction.detail,
        attempt_id=context.attempt_id,
        features={ref: FeatureReport(state, ages.get(ref)) for ref, state in prediction.feature_states.items()},
        stages=prediction.stages,
        usage=prediction.usage,
    )
    headers = {"Server-Timing": _server_timing(prediction.stages)}
    return Response(msgspec.json.encode(reply), media_type="application/json", headers=headers)


def _server_timing(stages: StageTimes) -> str:
    """Source: W3C Server Timing, section 3 (the header's grammar)."""
    names = ("features", "queue", "model", "fallback", "total")
    return ", ".join(f"{name};dur={getattr(stages, f'{name}_ms'):.3f}" for name in names)

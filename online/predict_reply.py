"""A `Prediction` as JSON, and where its time went, in the body and in `Server-Timing`."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
from fastapi import Response

from core_engine.contracts import Deadline, Prediction, StageBudget, StageTimes
from core_engine.metrics import Metrics
from online.request_context import RequestContext
from online.schemas import FeatureReport, PredictAnswer

STAGES = ("auth", "features", "queue", "model", "fallback", "serialise", "total")


def predict_reply(
    prediction: Prediction, context: RequestContext, deadline: Deadline, started_s: float, metrics: Metrics
) -> Response:
    """The reply; `started_s` is when the ladder was begun, `time.monotonic`."""
    encoding_s = time.monotonic()
    body = msgspec.json.encode(_reply(prediction, context))
    now_s = time.monotonic()
    stages = replace(
        prediction.stages,
        auth_ms=(started_s - context.arrived_s) * 1e3,
        serialise_ms=(now_s - encoding_s) * 1e3,
        total_ms=(now_s - context.arrived_s) * 1e3,
        overran=prediction.stages.overran or ("serialise" if deadline.expired else None),
    )
    for stage, elapsed_ms in (("auth", stages.auth_ms), ("serialise", stages.serialise_ms)):
        metrics.stage_latency.labels(prediction.predictor, stage).observe(elapsed_ms / 1e3)
    if context.trace is not None:
        context.trace.predicted(prediction, stages, context.arrived_s)
    # these come last: how long the rest took is among them
    times = b',"stages":%b,"budget":%b}' % (msgspec.json.encode(stages), msgspec.json.encode(prediction.budget))
    headers = {"Server-Timing": server_timing(stages, prediction.budget)}
    return Response(body[:-1] + times, media_type="application/json", headers=headers)


def _reply(prediction: Prediction, context: RequestContext) -> PredictAnswer:
    ages = prediction.feature_ages_s
    return PredictAnswer(
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
        stored=prediction.stored,
        usage=prediction.usage,
    )


def server_timing(stages: StageTimes, budget: StageBudget) -> str:
    """What each stage took in ms; its description is what it was allowed, and `overran` names the first that took more.

    Source: W3C Server Timing, section 3 (the header's grammar).
    """
    parts = [f"{name};dur={getattr(stages, f'{name}_ms'):.3f}{_allowed(budget, name)}" for name in STAGES]
    if stages.overran is not None:
        parts.append(f'overran;desc="{stages.overran}"')
    return ", ".join(parts)


def _allowed(budget: StageBudget, stage: str) -> str:
    allowed = {
        "features": budget.features_ms,
        "model": budget.model_ms,
        "fallback": budget.reserve_ms,
        "total": budget.total_ms,
    }.get(stage)
    return "" if allowed is None else f';desc="of {allowed:.3f}"'

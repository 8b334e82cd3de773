"""The usage fact of one attempt at the language model, as this door saw it: a completion's, or an embedding's."""

from __future__ import annotations

from datetime import UTC, datetime

from core_engine.contracts import GenerateRequest, ReadCost, Reason, Rung
from core_engine.costs.facts import CallerFact
from online.request_context import RequestContext


def attempt_fact(
    request: GenerateRequest, context: RequestContext, *, is_answered: bool, reason: Reason | None
) -> CallerFact:
    """Several attempts of one HTTP request are one delivery: without a key of the client's, that of the request."""
    is_one_of_several = request.attempt_id != context.attempt_id
    return CallerFact(
        attempt_id=request.attempt_id,
        delivery_key=context.delivery_key or (context.attempt_id if is_one_of_several else None),
        tenant=request.tenant,
        path=request.path,
        predictor=request.predictor,
        version=request.version,
        rung=Rung.MODEL if is_answered else Rung.NONE,
        reason=reason,
        feature=ReadCost(),
        caller_cpu_s=0.0,
        delivered_in_time=is_answered and not request.deadline.expired,
        arrived_at=context.arrived_at,
        answered_at=datetime.now(UTC),
    )

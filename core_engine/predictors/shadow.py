"""Shadow traffic: what live has answered is scored again by the shadow version, for nobody but the comparison.

A door offers each answer after it has sent it. One at a time is worked off, on the engine's bulk pool; what would wait
in a full queue, or comes while the door is near its limit, is dropped and counted. So a shadow never costs a reply
its time. What both models said goes to the spool as a `ComparisonFact`, and the shadow's own attempt is a usage fact
of the path `shadow`.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from core_engine.contracts import Deadline, Path, Prediction, PredictRequest, Rung
from core_engine.costs.facts import ComparisonFact
from core_engine.costs.spool import Spool
from core_engine.errors import InvalidRequest
from core_engine.metrics import Metrics
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import SHADOW

log = structlog.get_logger(__name__)
MAX_WAITING = 64
BUDGET_S = 1.0  # of one: nobody waits for it, but those behind it do


class Outcome(enum.StrEnum):
    COMPARED = "compared"
    LIVE_DEGRADED = "live_degraded"  # not live's model has answered: there is nothing to compare with
    NEAR_LIMIT = "near_limit"
    QUEUE_FULL = "queue_full"
    REFUSED = "refused"  # the shadow version does not take these inputs
    NOT_SCORED = "not_scored"  # its model did not answer
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answered:
    """A request, what live said of it, and who scores it again."""

    request: PredictRequest
    prediction: Prediction
    live: Predictor
    shadow: Predictor


class ShadowTraffic:
    """One per door. `is_near_limit` tells whether the door has no time to spare; `run` works until it is cancelled."""

    def __init__(
        self,
        *,
        flow: PredictFlow,
        catalogue: Catalogue,
        spool: Spool,
        metrics: Metrics,
        is_near_limit: Callable[[], bool],
        max_waiting: int = MAX_WAITING,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._flow = flow
        self._catalogue = catalogue
        self._spool = spool
        self._metrics = metrics
        self._is_near_limit = is_near_limit
        self._waiting: asyncio.Queue[Answered] = asyncio.Queue(max_waiting)
        self._now = now

    def offer(self, request: PredictRequest, prediction: Prediction) -> None:
        """Take an answer that was sent, if a shadow version follows the one that gave it. Never waits, never raises."""
        shadow = self._catalogue.shadow_of(prediction.predictor, prediction.version)
        if shadow is None:
            return
        if prediction.rung is not Rung.MODEL:
            self._count(shadow, Outcome.LIVE_DEGRADED)
        elif self._is_near_limit():
            self._count(shadow, Outcome.NEAR_LIMIT)
        elif self._waiting.full():
            self._count(shadow, Outcome.QUEUE_FULL)
        else:
            live = self._catalogue.view.versions[prediction.predictor, prediction.version]
            self._waiting.put_nowait(Answered(request, prediction, live, shadow))

    async def run(self) -> None:
        """Score what was offered, one after the other, for ever."""
        while True:
            answered = await self._waiting.get()
            try:
                outcome = Outcome.NEAR_LIMIT if self._is_near_limit() else await self._score(answered)
            except Exception:  # a loop of our own: one request may not end it
                log.exception("shadow_failed", predictor=answered.shadow.id)
                outcome = Outcome.FAILED
            self._count(answered.shadow, outcome)
            self._waiting.task_done()

    def _count(self, shadow: Predictor, outcome: Outcome) -> None:
        self._metrics.shadow_requests.labels(shadow.name, str(shadow.version), outcome).inc()

    async def _score(self, answered: Answered) -> Outcome:
        own = replace(
            answered.request,
            attempt_id=uuid.uuid4().hex,
            deadline=Deadline.after(BUDGET_S),
            path=Path.SHADOW,
            alias=SHADOW,
            delivery_key=None,
            rungs=(Rung.MODEL,),
        )
        try:
            said = await self._flow.predict(answered.shadow, own)
        except InvalidRequest:
            return Outcome.REFUSED
        if said.rung is not Rung.MODEL:
            return Outcome.NOT_SCORED
        self._compare(answered, own.attempt_id, said)
        return Outcome.COMPARED

    def _compare(self, answered: Answered, attempt_id: str, said: Prediction) -> None:
        live, shadow = answered.prediction.value, said.value
        assert isinstance(live, float), "the model rung gives a number"
        assert isinstance(shadow, float), "the model rung gives a number"
        disagrees = decides_differently(answered.live, live, answered.shadow, shadow)
        name, version = answered.shadow.name, answered.shadow.version
        self._metrics.shadow_difference.labels(name, str(version)).observe(abs(shadow - live))
        if disagrees:
            self._metrics.shadow_disagreements.labels(name, str(version)).inc()
        self._spool.write(
            ComparisonFact(
                attempt_id=attempt_id,
                predictor=name,
                version=answered.live.version,
                shadow_version=version,
                difference=shadow - live,
                disagrees=disagrees,
                compared_at=self._now(),
            )
        )


def decides_differently(live: Predictor, live_score: float, shadow: Predictor, shadow_score: float) -> bool | None:
    """Whether a caller who acts from each version's own threshold on would act on one score only; None without both."""
    if live.threshold is None or shadow.threshold is None:
        return None
    return (live_score >= live.threshold) != (shadow_score >= shadow.threshold)

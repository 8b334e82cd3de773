"""The one ladder: from a checked request to an answer, for every door.

Doors call `PredictFlow.predict` and nothing else. It reads features, tries the predictor's rungs in their declared
order and says which one answered and why none above it did. Overload or a lost dependency is the next rung, never an
exception; only a request that is wrong as sent raises, or one past its tenant's quota. It knows no wire and opens no
connection: a composition root hands it the reader, the engine client, the loaded rungs and the spool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from core_engine.breaker import BreakerState
from core_engine.contracts import (
    Deadline,
    FeatureRow,
    Monotonic,
    Path,
    Prediction,
    PredictRequest,
    Reason,
    Rung,
    Scalar,
)
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import Spool
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.metrics import Metrics
from core_engine.predictors.climb import Climb, Missed, Spent, in_ms, ladder_of, reserve_s
from core_engine.predictors.declaration import LMGenerate, OnState, Predictor
from core_engine.predictors.fallbacks import Fallbacks
from core_engine.predictors.feature_use import judge
from core_engine.predictors.inputs import check_inputs, entity_keys
from core_engine.predictors.model_rung import ModelRung
from core_engine.predictors.places import Places
from core_engine.predictors.preparation import Preparation
from core_engine.predictors.rungs import RungCache
from core_engine.readers import FeatureReader, PredictionReader
from core_engine.tenants.quotas import Quotas

if TYPE_CHECKING:  # pyzmq and tokenizers are the affair of those who build them
    from core_engine.llm.client import EngineClient
    from core_engine.llm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Asked:
    """A checked request, and when it came."""

    predictor: Predictor
    request: PredictRequest
    inputs: dict[str, Scalar]
    ladder: Sequence[Rung]
    reserve_s: float
    started_s: float
    arrived_at: datetime


class PredictFlow:
    """Built once per process. `feature_cap_s` is the most of a budget that the feature read, or a look-up, may take.

    With `places`, as at a door, predictions that find none are answered below the model, and a model that does not
    answer at all is not asked for a while. Without, as in a job, everybody asks. `quotas`: see `ModelRung`.
    """

    def __init__(
        self,
        *,
        features: FeatureReader,
        engine: EngineClient,
        rungs: RungCache,
        spool: Spool,
        metrics: Metrics,
        feature_cap_s: float,
        predictions: PredictionReader | None = None,
        tokenizer: Tokenizer | None = None,
        places: Places | None = None,
        quotas: Quotas | None = None,
        clock: Monotonic = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._features = features
        self._model = ModelRung(engine, tokenizer, clock, guarded=places is not None, quotas=quotas)
        self._fallbacks = Fallbacks(predictions, feature_cap_s, clock)
        self._rungs = rungs
        self._spool = spool
        self._metrics = metrics
        self._feature_cap_s = feature_cap_s
        self._places = places
        self._clock = clock
        self._now = now

    async def predict(self, predictor: Predictor, request: PredictRequest) -> Prediction:
        """The answer to `request` by version `predictor`; there always is one, at worst `Rung.NONE` with its reason.

        Raises:
            InvalidRequest: inputs that do not match the declaration, a rung asked for that may not answer, or a
                predictor that generates text.
            QuotaExceeded: the language model scores for this predictor, and the tenant has no tokens left.
        """
        started_s, arrived_at = self._clock(), self._now()
        if isinstance(predictor.model, LMGenerate):
            raise InvalidRequest(
                f"predictor {predictor.name} generates text: name it as the model of /v1/chat/completions",
                field="predictor",
                value=predictor.name,
                expected="a predictor that scores",
            )
        inputs = check_inputs(predictor, request.inputs)
        ladder, kept_s = ladder_of(predictor, request), self._reserve_s(predictor)
        asked = _Asked(predictor, request, inputs, ladder, kept_s, started_s, arrived_at)
        places = self._places
        if places is None or Rung.MODEL not in ladder or request.path is Path.SHADOW:
            return await self._answered(asked)
        if not await places.take(predictor.name, request.deadline.child(math.inf, kept_s)):
            return await self._answered(asked, _no_place(places))
        try:
            return await self._answered(asked)
        finally:
            places.leave(predictor.name)

    @property
    def engine_breaker(self) -> BreakerState:
        """The worst of all versions that were asked."""
        states = [record.breaker.state for record in self._model.records.by_version.values()]
        return max(states, default=BreakerState.CLOSED)

    def _reserve_s(self, predictor: Predictor) -> float:
        """What is kept for the rungs below the model: as declared and, at a door, two turns of its event loop; in one
        the request has lain unseen, in the other the answer will lie unsent."""
        declared_s, places = reserve_s(predictor), self._places
        return declared_s + 2 * places.turn_s if places is not None and declared_s > 0 else declared_s

    # -- the stages

    async def _answered(self, asked: _Asked, shed: str | None = None) -> Prediction:
        """Up the ladder, and the account of it. `shed`: without the model, and why."""
        climb = await self._prepare(asked, shed)
        answered, score = await self._climb(climb)
        prediction = self._answer(climb, answered, score, asked.started_s)
        self._account(climb, prediction, asked.arrived_at)
        return prediction

    async def _prepare(self, asked: _Asked, shed: str | None) -> Climb:
        """Read the features and find the loaded rungs."""
        predictor, request, started_s = asked.predictor, asked.request, self._clock()
        cap = request.deadline.child(self._feature_cap_s, asked.reserve_s)
        spent = Spent(queue_ms=(started_s - asked.started_s) * 1e3)  # for a place
        if predictor.features:
            spent.allowed_features_ms = in_ms(cap.remaining())
        row = await self._read(asked, cap, is_shed=shed is not None)
        read_s = self._clock()
        spent.features_ms = (read_s - started_s) * 1e3
        for stage, ended_s in (("auth", asked.started_s), ("queue", started_s), ("features", read_s)):
            if ended_s >= request.deadline.at_s - asked.reserve_s:
                spent.passed(stage)
        rungs, features = await self._rungs.get(predictor, request.deadline), judge(predictor.features, row)
        return Climb(predictor, request, asked.inputs, asked.ladder, asked.reserve_s, rungs, row, features, spent, shed)

    async def _read(self, asked: _Asked, deadline: Deadline, *, is_shed: bool) -> FeatureRow:
        """A door at its limit reads no features, unless nobody may answer without one."""
        uses, keys = asked.predictor.features, entity_keys(asked.predictor, asked.inputs)
        if not uses:
            return FeatureRow({})
        if is_shed and not any(use.on_missing is OnState.REFUSE for use in uses):
            return FeatureRow({}, failure=Reason.OVERLOADED)
        try:
            return await self._features.read([use.ref for use in uses], keys, deadline, inputs=asked.inputs)
        except HeadraceError as error:  # a view that this process does not know: the declaration's answer, not a 5xx
            return FeatureRow({}, failure=str(error))

    async def _climb(self, climb: Climb) -> tuple[Rung, float | None]:
        """The first rung that answers, and its score; what those above it said is in `climb.misses`."""
        for rung in climb.ladder:
            try:
                return rung, await self._ask(rung, climb)
            except Missed as missed:
                climb.misses.append((rung, missed))
                if missed.is_final:
                    break
        return Rung.NONE, None

    async def _ask(self, rung: Rung, climb: Climb) -> float:
        """The score of one rung. Raises `Missed`."""
        if climb.features.refuse is not None:
            raise Missed(climb.features.reason, climb.features.refuse, is_final=True)
        if rung is Rung.MODEL:
            usual_s = self._model.records.of(climb.predictor).times.value
            async with Preparation(self._fallbacks, climb, usual_s):
                return await self._model.ask(climb)
        started_s = self._clock()
        try:
            outcome = climb.prepared[rung] if rung in climb.prepared else await self._fallbacks.ask(rung, climb)
        finally:
            climb.spent.fallback_ms += (self._clock() - started_s) * 1e3
        if isinstance(outcome, Missed):
            raise outcome
        return outcome

    # -- the answer

    def _answer(self, climb: Climb, rung: Rung, score: float | None, started_s: float) -> Prediction:
        predictor, above = climb.predictor, [missed.reason for _, missed in climb.misses]
        now_s, deadline = self._clock(), climb.request.deadline
        if deadline.expired:
            climb.spent.passed("fallback")
        usage = replace(climb.usage, feature=climb.row.cost + climb.lookup_cost, caller_cpu_s=climb.caller_cpu_s)
        return Prediction(
            predictor=predictor.name,
            version=predictor.version,
            value=score,
            scores={} if score is None else climb.scores or {predictor.label: score},
            rung=rung,
            reason=above[0] if above else Reason.NO_RUNG if rung is Rung.NONE else None,
            detail="; ".join(f"{rung}: {missed.detail}" for rung, missed in climb.misses) or None,
            feature_states=climb.features.states,
            feature_ages_s=climb.features.ages_s,
            stages=climb.spent.times((now_s - started_s) * 1e3),
            usage=usage,
            feature_failure=climb.row.failure,
            budget=climb.spent.budget(in_ms(deadline.at_s - started_s), climb.reserve_s * 1e3),
            stored=climb.stored if rung is Rung.PRECOMPUTED else None,
        )

    def _account(self, climb: Climb, prediction: Prediction, arrived_at: datetime) -> None:
        """One fact to the spool, and the metrics of one prediction; a shadow's is for nobody."""
        request = climb.request
        is_delivered = request.path is not Path.SHADOW
        self._spool.write(
            CallerFact(
                attempt_id=request.attempt_id,
                delivery_key=request.delivery_key,
                tenant=request.tenant,
                path=request.path,
                predictor=prediction.predictor,
                version=prediction.version,
                rung=prediction.rung,
                reason=prediction.reason,
                feature=prediction.usage.feature,
                caller_cpu_s=prediction.usage.caller_cpu_s,
                delivered_in_time=is_delivered and prediction.rung is not Rung.NONE and not request.deadline.expired,
                arrived_at=arrived_at,
                answered_at=self._now(),
                stages=prediction.stages,
            )
        )
        if is_delivered:
            self._metrics.predicted(prediction)


def _no_place(places: Places) -> str:
    """What stands in the way: too many in hand, or turns of the event loop that would make the answer late."""
    turn_ms = places.turn_s * 1e3
    return (
        f"this door has no place for it: {places.in_flight} are in hand (the limit is {places.limit.value} of a "
        f"predictor), and a turn of its event loop takes {turn_ms:.1f} ms"
    )

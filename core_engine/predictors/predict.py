"""The one ladder: from a checked request to an answer, for every door.

Doors call `PredictFlow.predict` and nothing else. It reads features, tries the predictor's rungs in their declared
order and says which one answered and why none above it did. Overload or a lost dependency is the next rung, never an
exception; only a request that is wrong as sent raises. It knows no wire and opens no connection: a composition root
hands it the reader, the engine client, the loaded rungs and the spool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from core_engine.contracts import (
    FeatureRow,
    Monotonic,
    Prediction,
    PredictRequest,
    ReadCost,
    Reason,
    Rung,
    Scalar,
    StageTimes,
)
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import Spool
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.metrics import Metrics
from core_engine.predictors.climb import Climb, Missed, one_score, reason_of, reserve_s
from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.predictors.feature_use import judge
from core_engine.predictors.inputs import check_inputs, entity_keys, lookup_key
from core_engine.predictors.model_rung import ModelRung
from core_engine.predictors.rungs import RungCache
from core_engine.readers import FeatureReader, PredictionReader

if TYPE_CHECKING:  # pyzmq and tokenizers are the affair of those who build them
    from core_engine.llm.client import EngineClient
    from core_engine.llm.tokenizer import Tokenizer

LOOKUP_RESERVE_S = 0.001  # kept for the rungs below a look-up: they take microseconds


class PredictFlow:
    """Built once per process. `feature_cap_s` is the most of a budget that the feature read, or a look-up, may take."""

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
        clock: Monotonic = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._features = features
        self._model = ModelRung(engine, tokenizer, clock)
        self._rungs = rungs
        self._spool = spool
        self._metrics = metrics
        self._feature_cap_s = feature_cap_s
        self._predictions = predictions
        self._clock = clock
        self._now = now

    async def predict(self, predictor: Predictor, request: PredictRequest) -> Prediction:
        """The answer to `request` by version `predictor`; there always is one, at worst `Rung.NONE` with its reason.

        Raises:
            InvalidRequest: inputs that do not match the declaration, or a predictor that generates text.
        """
        started_s, arrived_at = self._clock(), self._now()
        if isinstance(predictor.model, LMGenerate):
            raise InvalidRequest(
                f"predictor {predictor.name} generates text: name it as the model of /v1/chat/completions",
                field="predictor",
                value=predictor.name,
                expected="a predictor that scores",
            )
        climb = await self._prepare(predictor, request, started_s)
        answered, score = Rung.NONE, None
        for rung in climb.ladder:
            try:
                score = await self._ask(rung, climb)
            except Missed as missed:
                climb.misses.append((rung, missed))
                if missed.is_final:
                    break
            else:
                answered = rung
                break
        prediction = self._answer(climb, answered, score, started_s)
        self._account(climb, prediction, arrived_at)
        return prediction

    # -- the stages

    async def _prepare(self, predictor: Predictor, request: PredictRequest, started_s: float) -> Climb:
        """Check the inputs, read the features, encode the row."""
        inputs = check_inputs(predictor, request.inputs)
        row = await self._read(predictor, request, inputs)
        read_s = self._clock() - started_s
        rungs = await self._rungs.get(predictor, request.deadline)
        climb = Climb(predictor, request, inputs, rungs, row, judge(predictor.features, row))
        spent = request.deadline.child(math.inf, climb.reserve_s).expired
        climb.stages = StageTimes(features_ms=read_s * 1e3, overran="features" if spent else None)
        return climb

    async def _read(self, predictor: Predictor, request: PredictRequest, inputs: dict[str, Scalar]) -> FeatureRow:
        refs, keys = [use.ref for use in predictor.features], entity_keys(predictor, inputs)
        if not refs:
            return FeatureRow({})
        deadline = request.deadline.child(self._feature_cap_s, reserve_s(predictor))
        try:
            return await self._features.read(refs, keys, deadline, inputs=inputs)
        except HeadraceError as error:  # a view that this process does not know: the declaration's answer, not a 5xx
            return FeatureRow({}, failure=str(error))

    async def _ask(self, rung: Rung, climb: Climb) -> float:
        """The score of one rung. Raises `Missed`."""
        if climb.features.refuse is not None:
            raise Missed(climb.features.reason, climb.features.refuse, is_final=True)
        match rung:
            case Rung.MODEL:
                return await self._model.ask(climb)
            case Rung.STUDENT:
                student = climb.rungs.student
                return self._on_caller(rung, climb, student.score if student else None)
            case Rung.PRIOR:
                prior = climb.rungs.prior
                return self._on_caller(rung, climb, prior.rate if prior else None)
            case Rung.PRECOMPUTED:
                return await self._precomputed(climb)
            case Rung.NONE:
                raise Missed(Reason.NO_RUNG, "a ladder has no such rung")

    async def _precomputed(self, climb: Climb) -> float:
        """What a batch job stored for this request's key, unless it is too old."""
        declared, started_s = climb.predictor.precomputed, self._clock()
        if self._predictions is None or declared is None:
            raise Missed(Reason.NO_RUNG, "no stored predictions are connected")
        deadline = climb.request.deadline.child(self._feature_cap_s, LOOKUP_RESERVE_S)
        if deadline.expired:
            raise Missed(Reason.DEADLINE, "no time was left for a look-up")
        try:
            key = lookup_key(climb.predictor, climb.inputs)
            stored = await self._predictions.lookup(climb.predictor.id, key, deadline)
        except HeadraceError as error:
            raise Missed(reason_of(error), str(error)) from None
        finally:
            climb.add_fallback(self._clock() - started_s)
        climb.lookup_cost = stored.cost if stored else ReadCost(reads=1, round_trips=1)
        if stored is None:
            raise Missed(Reason.NOT_PRECOMPUTED, f"nothing is stored for {key}")
        if stored.age_s > declared.max_age_s:
            detail = f"generation {stored.generation} is {stored.age_s:.0f} s old, above {declared.max_age_s:g} s"
            raise Missed(Reason.PRECOMPUTED_TOO_OLD, detail)
        if not isinstance(stored.value, float):
            raise Missed(Reason.MODEL_ERROR, f"generation {stored.generation} holds no number for {key}")
        return one_score((stored.value,))

    def _on_caller(self, rung: Rung, climb: Climb, score: Callable[[npt.NDArray[np.float32]], float] | None) -> float:
        """Run a student or prior in this thread: microseconds, and there must be an answer past the deadline too."""
        if score is None:
            fault = climb.rungs.faults.get(rung)
            raise Missed(Reason.MODEL_ERROR if fault else Reason.NO_RUNG, fault or f"no {rung} is declared")
        vector = climb.encode()
        started_s, cpu_s = self._clock(), time.thread_time()
        try:
            return one_score((score(vector),))
        except (HeadraceError, RuntimeError) as error:  # onnxruntime's errors are RuntimeErrors
            raise Missed(Reason.MODEL_ERROR, str(error)) from None
        finally:
            climb.caller_cpu_s += time.thread_time() - cpu_s
            climb.add_fallback(self._clock() - started_s)

    # -- the answer

    def _answer(self, climb: Climb, rung: Rung, score: float | None, started_s: float) -> Prediction:
        predictor, is_late = climb.predictor, climb.request.deadline.expired
        first = climb.misses[0][1] if climb.misses else None
        return Prediction(
            predictor=predictor.name,
            version=predictor.version,
            value=score,
            scores={} if score is None else climb.scores or {predictor.label: score},
            rung=rung,
            reason=first.reason if first else None,
            detail="; ".join(f"{rung}: {missed.detail}" for rung, missed in climb.misses) or None,
            feature_states=climb.features.states,
            feature_ages_s=climb.features.ages_s,
            stages=replace(
                climb.stages,
                total_ms=(self._clock() - started_s) * 1e3,
                overran=climb.stages.overran or ("fallback" if is_late else None),
            ),
            usage=replace(climb.usage, feature=climb.row.cost + climb.lookup_cost, caller_cpu_s=climb.caller_cpu_s),
            feature_failure=climb.row.failure,
        )

    def _account(self, climb: Climb, prediction: Prediction, arrived_at: datetime) -> None:
        """One fact to the spool, and the metrics of one prediction."""
        request = climb.request
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
                delivered_in_time=prediction.rung is not Rung.NONE and not request.deadline.expired,
                arrived_at=arrived_at,
                answered_at=self._now(),
            )
        )
        self._metrics.predicted(prediction)

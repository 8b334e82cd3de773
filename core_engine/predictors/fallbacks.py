"""The rungs below the model: what a batch job stored, the student, the prior.

None of them needs an engine. The student and the prior run in this thread: they take microseconds, and there must be an
answer past the deadline too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from core_engine.contracts import Monotonic, ReadCost, Reason, Rung, Stored
from core_engine.errors import HeadraceError
from core_engine.predictors.climb import Climb, Missed, one_score, reason_of
from core_engine.predictors.declaration import Precomputed
from core_engine.predictors.inputs import lookup_key
from core_engine.readers import PredictionReader, StoredPrediction
from core_engine.rolling_quantile import RollingQuantile

USUAL_LOOKUP_S = 0.002  # until enough were measured
LATE = 0.95


class Fallbacks:
    """`lookup_cap_s` is the most of a budget that a look-up may take."""

    def __init__(self, predictions: PredictionReader | None, lookup_cap_s: float, clock: Monotonic) -> None:
        self._predictions = predictions
        self._lookup_cap_s = lookup_cap_s
        self._clock = clock
        self._lookups = RollingQuantile(LATE)

    @property
    def usual_lookup_s(self) -> float:
        """What 95 of 100 look-ups of late stayed below."""
        return USUAL_LOOKUP_S if self._lookups.value is None else self._lookups.value

    async def ask(self, rung: Rung, climb: Climb) -> float:
        """The score of one rung. Raises `Missed`."""
        match rung:
            case Rung.PRECOMPUTED:
                return await self._precomputed(climb)
            case Rung.STUDENT:
                student = climb.rungs.student
                return self._on_caller(rung, climb, student.score if student else None)
            case Rung.PRIOR:
                prior = climb.rungs.prior
                return self._on_caller(rung, climb, prior.rate if prior else None)
            case _:
                raise Missed(Reason.NO_RUNG, f"a ladder has no {rung} below the model")

    async def _precomputed(self, climb: Climb) -> float:
        """What a batch job stored for this request's key, unless it is too old.

        A door at its limit leaves the look-up to requests that have no student: it costs as much as what was shed.
        """
        declared, started_s = climb.predictor.precomputed, self._clock()
        if self._predictions is None or declared is None:
            raise Missed(Reason.NO_RUNG, "no stored predictions are connected")
        if climb.shed is not None and Rung.STUDENT in climb.below_model:
            raise Missed(Reason.OVERLOADED, "over the limit the student answers, without a round trip")
        deadline = climb.request.deadline.child(self._lookup_cap_s, climb.reserve_s)
        if deadline.expired:
            raise Missed(Reason.DEADLINE, "no time was left for a look-up")
        climb.lookup_cost = ReadCost(reads=1, round_trips=1)  # asked for, whatever comes
        try:
            key = lookup_key(climb.predictor, climb.inputs)
            stored = await self._predictions.lookup(climb.predictor.id, key, deadline)
        except HeadraceError as error:
            raise Missed(reason_of(error), str(error)) from None
        self._lookups.add(self._clock() - started_s)
        if stored is None:
            raise Missed(Reason.NOT_PRECOMPUTED, f"nothing is stored for {key}")
        return _usable(climb, declared, stored, key)

    def _on_caller(self, rung: Rung, climb: Climb, score: Callable[[npt.NDArray[np.float32]], float] | None) -> float:
        if score is None:
            fault = climb.rungs.faults.get(rung)
            raise Missed(Reason.MODEL_ERROR if fault else Reason.NO_RUNG, fault or f"no {rung} is declared")
        vector, cpu_s = climb.encode(), time.thread_time()
        try:
            return one_score((score(vector),))
        except (HeadraceError, RuntimeError) as error:  # onnxruntime's errors are RuntimeErrors
            raise Missed(Reason.MODEL_ERROR, str(error)) from None
        finally:
            climb.caller_cpu_s += time.thread_time() - cpu_s


def _usable(climb: Climb, declared: Precomputed, stored: StoredPrediction, key: str) -> float:
    climb.lookup_cost = stored.cost
    if stored.age_s > declared.max_age_s:
        detail = f"generation {stored.generation} is {stored.age_s:.0f} s old, above {declared.max_age_s:g} s"
        raise Missed(Reason.PRECOMPUTED_TOO_OLD, detail)
    if not isinstance(stored.value, float):
        raise Missed(Reason.MODEL_ERROR, f"generation {stored.generation} holds no number for {key}")
    score = one_score((stored.value,))
    climb.stored = Stored(stored.generation, stored.age_s)
    return score

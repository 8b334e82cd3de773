"""One request on its way up the ladder, and why a rung of it did not answer.

`predict` climbs; the rungs read what the stages before them left here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from core_engine.contracts import (
    FeatureRow,
    Path,
    PredictRequest,
    ReadCost,
    Reason,
    Rung,
    Scalar,
    StageBudget,
    StageTimes,
    Stored,
    Usage,
)
from core_engine.errors import (
    DeadlineExceeded,
    EngineRefused,
    EngineUnavailable,
    HeadraceError,
    InvalidRequest,
    StoreBreakerOpen,
    StoreUnavailable,
    Unavailable,
)
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.feature_use import Judgement
from core_engine.predictors.rungs import CallerRungs

REASONS: dict[type[HeadraceError], Reason] = {  # of an error of several kinds, the first
    EngineUnavailable: Reason.ENGINE_UNAVAILABLE,
    EngineRefused: Reason.ENGINE_REFUSED,
    DeadlineExceeded: Reason.DEADLINE,
    StoreBreakerOpen: Reason.BREAKER_OPEN,
    StoreUnavailable: Reason.STORE_UNAVAILABLE,
}


class Missed(Exception):
    """A rung that did not answer, and why. `is_final`: no rung below it may answer either."""

    def __init__(self, reason: Reason, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.is_final = is_final


Outcome: TypeAlias = float | Missed  # of one rung


@dataclass(slots=True)
class Spent:
    """Milliseconds by stage so far, and what was allowed, as `StageTimes` and `StageBudget` have them in the end."""

    features_ms: float = 0.0
    queue_ms: float = 0.0
    model_ms: float = 0.0
    fallback_ms: float = 0.0
    overran: str | None = None
    allowed_features_ms: float | None = None
    allowed_model_ms: float | None = None

    def passed(self, stage: str) -> None:
        """The first stage that used up the budget is the one that is named."""
        self.overran = self.overran or stage

    def times(self, total_ms: float) -> StageTimes:
        return StageTimes(self.features_ms, self.queue_ms, self.model_ms, self.fallback_ms, total_ms, self.overran)

    def budget(self, total_ms: float | None, reserve_ms: float) -> StageBudget:
        return StageBudget(total_ms, self.allowed_features_ms, self.allowed_model_ms, reserve_ms)


@dataclass(slots=True)
class Climb:
    """One request on its way up the ladder; what each stage adds is read by the next.

    `ladder` are the rungs that may answer, in order; `reserve_s` is kept for those below the model. `shed` says why the
    model may not be asked, where the door has too much in hand. `prepared` is what rungs below it have said already.
    """

    predictor: Predictor
    request: PredictRequest
    inputs: dict[str, Scalar]
    ladder: Sequence[Rung]
    reserve_s: float
    rungs: CallerRungs
    row: FeatureRow
    features: Judgement
    spent: Spent
    shed: str | None = None
    vector: npt.NDArray[np.float32] | None = None  # [num_columns]
    scores: Mapping[str, float] = field(default_factory=dict)  # by label, where the model rung gave more than one
    prepared: dict[Rung, Outcome] = field(default_factory=dict)
    misses: list[tuple[Rung, Missed]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    lookup_cost: ReadCost = field(default_factory=ReadCost)
    stored: Stored | None = None
    caller_cpu_s: float = 0.0

    @property
    def below_model(self) -> Sequence[Rung]:
        """The rungs that are tried when the model has missed."""
        ladder = self.ladder
        return ladder[ladder.index(Rung.MODEL) + 1 :] if Rung.MODEL in ladder else ladder

    def encode(self) -> npt.NDArray[np.float32]:
        """The row of the predictor's columns, float32 [num_columns], made once. Raises `Missed`."""
        if self.vector is None:
            encoder, cpu_s = self.rungs.encoder, time.thread_time()
            if encoder is None:
                raise Missed(Reason.MODEL_ERROR, self.rungs.faults.get(Rung.MODEL, "no columns are declared"))
            try:
                self.vector = encoder.encode(self.inputs, self.features.values)
            except HeadraceError as error:  # a stored value of a type that its column cannot hold
                raise Missed(Reason.MODEL_ERROR, str(error)) from None
            self.caller_cpu_s += time.thread_time() - cpu_s
        return self.vector


def ladder_of(predictor: Predictor, request: PredictRequest) -> Sequence[Rung]:
    """The rungs that may answer this request, in order. What a job will store never comes from what is stored.

    Raises:
        InvalidRequest: it names a rung that may not answer.
    """
    skipped = Rung.PRECOMPUTED if request.path is Path.BATCH else None
    allowed = [r for r in predictor.ladder if (r is Rung.MODEL or predictor.fail_open) and r is not skipped]
    for rung in request.rungs:
        if rung not in allowed:
            expected = f"some of {', '.join(allowed)}"
            message = f"rungs = {rung}: predictor {predictor.name} answers from {expected}"
            raise InvalidRequest(message, field="rungs", value=rung, expected=expected)
    return [rung for rung in allowed if rung in request.rungs] if request.rungs else allowed


def reserve_s(predictor: Predictor) -> float:
    """Seconds kept for the rungs below the model; none where none may answer."""
    below = predictor.fail_open and any(rung is not Rung.MODEL for rung in predictor.ladder)
    return predictor.reserve_ms / 1e3 if below else 0.0


def in_ms(seconds: float) -> float | None:
    """Milliseconds that JSON can say: None where there is no bound, 0 where it has passed."""
    return max(0.0, seconds * 1e3) if math.isfinite(seconds) else None


def one_score(scores: Sequence[Any]) -> float:
    if len(scores) != 1 or not math.isfinite(scores[0]):
        raise Missed(Reason.MODEL_ERROR, f"expected one finite score, got {list(scores)}")
    return float(scores[0])


def reason_of(error: HeadraceError) -> Reason:
    """Why a rung missed, in a word that can label a metric."""
    for kind, reason in REASONS.items():
        if isinstance(error, kind):
            return reason
    return Reason.ENGINE_UNAVAILABLE if isinstance(error, Unavailable) else Reason.MODEL_ERROR

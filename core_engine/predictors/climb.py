"""One request on its way up the ladder, and why a rung of it did not answer.

`predict` climbs; the rungs read what the stages before them left here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    StageTimes,
    Usage,
)
from core_engine.errors import (
    DeadlineExceeded,
    EngineRefused,
    EngineUnavailable,
    HeadraceError,
    StoreUnavailable,
    Unavailable,
)
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.feature_use import Judgement
from core_engine.predictors.rungs import CallerRungs

REASONS: dict[type[HeadraceError], Reason] = {
    EngineUnavailable: Reason.ENGINE_UNAVAILABLE,
    EngineRefused: Reason.ENGINE_REFUSED,
    DeadlineExceeded: Reason.DEADLINE,
    StoreUnavailable: Reason.STORE_UNAVAILABLE,
}


class Missed(Exception):
    """A rung that did not answer, and why. `is_final`: no rung below it may answer either."""

    def __init__(self, reason: Reason, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.is_final = is_final


@dataclass(slots=True)
class Climb:
    """One request on its way up the ladder; what each stage adds is read by the next."""

    predictor: Predictor
    request: PredictRequest
    inputs: dict[str, Scalar]
    rungs: CallerRungs
    row: FeatureRow
    features: Judgement
    vector: npt.NDArray[np.float32] | None = None  # [num_columns]
    scores: Mapping[str, float] = field(default_factory=dict)  # by label, where the model rung gave more than one
    misses: list[tuple[Rung, Missed]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    lookup_cost: ReadCost = field(default_factory=ReadCost)
    caller_cpu_s: float = 0.0
    stages: StageTimes = field(default_factory=StageTimes)

    @property
    def ladder(self) -> Sequence[Rung]:
        """The rungs that may answer this request, in order. What a job will store never comes from what is stored."""
        skipped = Rung.PRECOMPUTED if self.request.path is Path.BATCH else None
        allowed = (r for r in self.predictor.ladder if r is Rung.MODEL or self.predictor.fail_open)
        return [rung for rung in allowed if rung is not skipped]

    @property
    def reserve_s(self) -> float:
        return reserve_s(self.predictor)

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

    def add_fallback(self, elapsed_s: float) -> None:
        self.stages = replace(self.stages, fallback_ms=self.stages.fallback_ms + elapsed_s * 1e3)


def reserve_s(predictor: Predictor) -> float:
    """Seconds kept for the rungs below the model; none where none may answer."""
    below = predictor.fail_open and any(rung is not Rung.MODEL for rung in predictor.ladder)
    return predictor.reserve_ms / 1e3 if below else 0.0


def one_score(scores: Sequence[Any]) -> float:
    if len(scores) != 1 or not math.isfinite(scores[0]):
        raise Missed(Reason.MODEL_ERROR, f"expected one finite score, got {list(scores)}")
    return float(scores[0])


def reason_of(error: HeadraceError) -> Reason:
    """Why the model rung missed, in a word that can label a metric."""
    for kind, reason in REASONS.items():
        if isinstance(error, kind):
            return reason
    return Reason.ENGINE_UNAVAILABLE if isinstance(error, Unavailable) else Reason.MODEL_ERROR

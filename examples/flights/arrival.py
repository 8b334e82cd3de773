"""`arrival_delay`: asked again the moment a flight has left, by the stream: will it arrive 15 or more minutes late?

The question of delay_risk with one more fact, the departure's own delay, and features as they are known at departure.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import Rung
from core_engine.predictors.declaration import (
    Column,
    ColumnKind,
    InputField,
    InputKind,
    Predictor,
    Prior,
    Student,
    TorchScorer,
)
from examples.flights.features import OWNER
from examples.flights.predictors import ENTITIES, FEATURES, INPUTS, SEGMENT, Artifacts, Categories, columns
from examples.flights.training import Question

DEPARTURE_DELAY = InputField(
    name="departure_delay", kind=InputKind.FLOAT, minimum=-300, maximum=3_000, description="minutes, as flown"
)
FRESHNESS_S = 60.0  # an answer that comes a minute after the departure is still news


def arrival_columns(categories: Categories) -> tuple[Column, ...]:
    return (*columns(categories), Column(name="departure_delay", kind=ColumnKind.NUMERIC, source="departure_delay"))


def departed(flights: pa.Table) -> pa.Table:
    """The planned flights that left."""
    return flights.filter(pc.is_valid(flights["departure"]))


AT_DEPARTURE = Question(columns=arrival_columns, as_of=lambda flights: flights["departure"], facts=("departure_delay",))


def arrival_delay(categories: Categories, artifacts: Artifacts) -> Predictor:
    return Predictor(
        name="arrival_delay",
        version=1,
        owner=OWNER,
        model=TorchScorer(artifact=artifacts.scorer),
        inputs=(*INPUTS, DEPARTURE_DELAY),
        entities=ENTITIES,
        features=FEATURES,
        columns=arrival_columns(categories),
        label="late",
        student=Student(artifact=artifacts.student),
        prior=Prior(artifact=artifacts.prior, segment=SEGMENT, fallback=artifacts.prior_fallback),
        ladder=(Rung.MODEL, Rung.STUDENT, Rung.PRIOR),
        freshness_s=FRESHNESS_S,
        budget_ms=1_000.0,
        description="Probability that a flight arrives 15 or more minutes late, scored as it departs.",
    )

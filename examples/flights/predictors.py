"""The example's predictors as declarations: `delay_risk` scores a flight, `flight_notice` writes to its passengers,
`route_brief` writes a note per route, nightly.

delay_risk asks, two hours before scheduled departure, whether the flight will arrive 15 or more minutes late. The
flight's own delays appear nowhere. There is no day-of-year column either: the months that it is judged on lie after
those it was trained on, so their days would be numbers never seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.contracts import Rung
from core_engine.predictors.declaration import (
    Artifact,
    Column,
    ColumnKind,
    EntityUse,
    FeatureUse,
    InputField,
    InputKind,
    LMGenerate,
    Objective,
    OnState,
    Precomputed,
    Predictor,
    Prior,
    Student,
    TorchScorer,
)
from examples.flights.features import OWNER, WEATHER_FIELDS

SEGMENT = ("carrier", "hour")  # of the prior
ENTITIES = (
    EntityUse(entity="route", fields=("origin", "dest")),
    EntityUse(entity="carrier", fields=("carrier",)),
    EntityUse(entity="airport", fields=("origin",)),
)
INPUTS = (
    InputField(name="carrier", kind=InputKind.STRING, max_length=3, description="IATA code of the airline"),
    InputField(name="origin", kind=InputKind.STRING, max_length=4, description="airport of departure"),
    InputField(name="dest", kind=InputKind.STRING, max_length=4, description="airport of arrival"),
    InputField(
        name="scheduled_departure", kind=InputKind.TIMESTAMP, description="with the airport's own UTC offset"
    ),
    InputField(name="distance", kind=InputKind.FLOAT, required=False, minimum=0, maximum=20_000, description="miles"),
)  # fmt: skip

# A route that has not been flown of late has no row: absent is a fact that the model has learnt to read, and an old
# observation says more than none. A carrier without a row means that the nightly job never ran for it: the model would
# answer blind. A window that the stream left behind is worse than none: it is read as an ordinary hour, the means of
# February to September.
FEATURES = (
    FeatureUse(ref="route_daily.mean_delay"),
    FeatureUse(ref="route_daily.late_share"),
    FeatureUse(ref="route_daily.flights"),
    FeatureUse(ref="carrier_daily.mean_delay", on_missing=OnState.NEXT_RUNG),
    FeatureUse(ref="carrier_daily.late_share", on_missing=OnState.NEXT_RUNG),
    FeatureUse(ref="airport_departures.mean_delay", on_stale=OnState.DEFAULT, default=8.0),
    FeatureUse(ref="airport_departures.late_share", on_stale=OnState.DEFAULT, default=0.17),
    FeatureUse(ref="airport_departures.flights", on_stale=OnState.DEFAULT, default=29.0),
    *(FeatureUse(ref=f"weather_hourly.{name}") for name in WEATHER_FIELDS),
)

NOTICE_PROMPT = (
    "You write short notices to airline passengers. Use only the facts you are given. Write two or three plain, calm "
    "sentences: what happens to the flight, why, and what the passenger should do next. No greeting and no signature."
)

# Of four wordings tried on three routes, the one whose sentences kept to the numbers, and the shortest.
BRIEF_PROMPT = "You summarise facts in one short, plain sentence."
BRIEF_FACTS = (
    "Facts: In the last 28 days, {flights} flights went from {origin} to {dest}, {distance:.0f} miles. "
    "{late_share:.0%} of them were 15 or more minutes late. The average delay was {mean_delay:.0f} minutes. "
    "Summarise the facts."
)

# A night's scores serve until the next night's are there, with an hour to spare. The key holds all that tells two
# requests apart: the distance follows from the route.
NIGHTLY = Precomputed(key=("carrier", "origin", "dest", "scheduled_departure"), max_age_s=25 * 3600.0)


@dataclass(frozen=True, slots=True)
class Categories:
    """The values that the training months know; any other is unknown to the model, and no error."""

    carriers: tuple[str, ...]
    origins: tuple[str, ...]
    dests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What training leaves behind: one file per rung, and the rate of segments that the prior does not know."""

    scorer: Artifact
    student: Artifact
    prior: Artifact
    prior_fallback: float


def columns(categories: Categories) -> tuple[Column, ...]:
    """Columns of the model, the student and the prior, in order."""
    return (
        Column(name="carrier", kind=ColumnKind.CATEGORY, source="carrier", values=categories.carriers),
        Column(name="origin", kind=ColumnKind.CATEGORY, source="origin", values=categories.origins),
        Column(name="dest", kind=ColumnKind.CATEGORY, source="dest", values=categories.dests),
        Column(name="hour", kind=ColumnKind.HOUR, source="scheduled_departure"),
        Column(name="weekday", kind=ColumnKind.WEEKDAY, source="scheduled_departure"),
        Column(name="distance", kind=ColumnKind.NUMERIC, source="distance"),
        *(Column(name=use.ref.replace(".", "_"), kind=ColumnKind.NUMERIC, source=use.ref) for use in FEATURES),
    )


def delay_risk(categories: Categories, artifacts: Artifacts) -> Predictor:
    return Predictor(
        name="delay_risk",
        version=1,
        owner=OWNER,
        model=TorchScorer(artifact=artifacts.scorer),
        inputs=INPUTS,
        entities=ENTITIES,
        features=FEATURES,
        columns=columns(categories),
        label="late",
        student=Student(artifact=artifacts.student),
        prior=Prior(artifact=artifacts.prior, segment=SEGMENT, fallback=artifacts.prior_fallback),
        precomputed=NIGHTLY,
        ladder=(Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR),
        budget_ms=50.0,
        description="Probability that a flight arrives 15 or more minutes late, two hours before it should leave.",
    )


def flight_notice() -> Predictor:
    return Predictor(
        name="flight_notice",
        version=1,
        owner=OWNER,
        model=LMGenerate(system_prompt=NOTICE_PROMPT, max_tokens=120),
        budget_ms=30_000.0,
        description="A short notice to the passengers of one flight, written from the facts in the user message.",
    )


def route_brief() -> Predictor:
    """Its inputs are facts of one night: they are in the row, so that the same file is the same job."""
    return Predictor(
        name="route_brief",
        version=1,
        owner=OWNER,
        model=LMGenerate(system_prompt=BRIEF_PROMPT, prompt=BRIEF_FACTS, max_tokens=56),
        inputs=(
            InputField(name="origin", kind=InputKind.STRING, max_length=4),
            InputField(name="dest", kind=InputKind.STRING, max_length=4),
            InputField(name="distance", kind=InputKind.FLOAT, minimum=0, maximum=20_000, description="miles"),
            InputField(name="flights", kind=InputKind.INT, minimum=1, description="arrived in the last 28 days"),
            InputField(name="mean_delay", kind=InputKind.FLOAT, description="minutes, of arrivals"),
            InputField(name="late_share", kind=InputKind.FLOAT, minimum=0, maximum=1),
        ),
        precomputed=Precomputed(key=("origin", "dest"), max_age_s=25 * 3600.0),
        objective=Objective.THROUGHPUT,
        budget_ms=30_000.0,
        freshness_s=25 * 3600.0,
        description="A sentence on how punctual a route has been, for its planner; written every night.",
    )

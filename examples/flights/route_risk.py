"""`route_risk`: the question of delay_risk, asked of the language model by its choice between two words.

It was trained on nothing of this, so how well it ranks is measured (`python -m benchmarks.flights.route_risk`), never
assumed: AUC 0.60 (0.54 to 0.66) on 400 held-out flights, where the prior has 0.64 (0.58 to 0.71). Of thirty wordings
tried on August and September, the ones that describe a flight in sentences hardly rank at all (0.53); bare numbers
after two answered examples have 0.58 to 0.64, and differences among those are chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from core_engine.contracts import FeatureRow, FeatureState, FeatureValue, Rung, Scalar
from core_engine.predictors.declaration import LabelText, LMScore, Predictor, Prior
from core_engine.predictors.feature_use import judge
from examples.flights.features import OWNER
from examples.flights.predictors import ENTITIES, FEATURES, INPUTS, SEGMENT, Artifacts, Categories, columns
from examples.flights.quality import RungQuality, rung_quality
from examples.flights.training import HELD_OUT_FROM, known_rows, local_days
from featurestore.definitions import FeatureView
from featurestore.offline.store import STATE_SUFFIX

# All that is constant comes first, to four whole blocks of the prefix cache, so that a question computes
# the flight's own 14 tokens. Two answered examples say better than names what the numbers are.
RISK_PROMPT = (
    "You judge whether a flight will arrive 15 or more minutes late. Answer Yes or No. "
    "Given hour, mean delay now, share late on the route.\n"
    "06 -3 10% = No\n"
    "18 25 35% = Yes"
)
RISK_FACTS = "{scheduled_departure:%H} {airport_departures.mean_delay:.0f} {route_daily.late_share:.0%}"
FACTS = tuple(use for use in FEATURES if f"{{{use.ref}:" in RISK_FACTS)


def route_risk(categories: Categories, artifacts: Artifacts) -> Predictor:
    """`artifacts` are those of delay_risk, of which it takes the prior."""
    return Predictor(
        name="route_risk",
        version=2,  # 1 began with the flight, so that little of its prompt was shared
        owner=OWNER,
        model=LMScore(
            system_prompt=RISK_PROMPT,
            prompt=RISK_FACTS,
            labels=(LabelText(name="late", text="Yes"), LabelText(name="in_time", text="No")),
        ),
        inputs=INPUTS,
        entities=ENTITIES,
        features=FACTS,
        columns=tuple(column for column in columns(categories) if column.name in SEGMENT),
        label="late",
        prior=Prior(artifact=artifacts.prior, segment=SEGMENT, fallback=artifacts.prior_fallback),
        ladder=(Rung.MODEL, Rung.PRIOR),
        budget_ms=1_000.0,
        description="Probability that a flight arrives 15 or more minutes late, by the language model's word for it.",
    )


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Flights of the held-out months as `route_risk` would have been asked of them: inputs, and features as judged."""

    asked: Sequence[tuple[Mapping[str, Scalar], Mapping[str, Any]]]
    late: npt.NDArray[np.bool_]  # [num_flights]
    day: npt.NDArray[np.datetime64]  # [num_flights], local

    def quality_of(self, scores: Sequence[float]) -> RungQuality:
        """How good `scores` are, one per flight: chances of being late."""
        return rung_quality(self.late, np.asarray(scores), self.day)


def held_out(flights: pa.Table, views: Sequence[FeatureView], num_flights: int) -> HeldOut:
    """At most `num_flights` flights whose outcome is known, evenly over the held-out months; `flights` as
    `data.FlightData` has them."""
    day = local_days(flights)
    known = np.flatnonzero((day >= np.datetime64(HELD_OUT_FROM)) & flights["late"].is_valid().to_numpy())
    chosen = known[np.linspace(0, len(known) - 1, num=min(num_flights, len(known)), dtype=np.int64)]
    sample = flights.take(pa.array(chosen))
    rows = known_rows(sample, views).to_pylist()
    return HeldOut([_asked(row) for row in rows], sample["late"].to_numpy(), day[chosen])


def _asked(row: Mapping[str, Any]) -> tuple[Mapping[str, Scalar], Mapping[str, Any]]:
    offset = timezone(timedelta(seconds=row["offset_s"]))
    inputs = {name: row[name] for name in ("carrier", "origin", "dest")}
    inputs["scheduled_departure"] = row["scheduled_departure"].astimezone(offset)
    inputs["distance"] = float(row["distance"])
    found = {use.ref: FeatureValue(row[use.ref], FeatureState(row[use.ref + STATE_SUFFIX])) for use in FACTS}
    return inputs, judge(FACTS, FeatureRow(found)).values

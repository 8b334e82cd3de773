"""Training rows without leakage: what was known of each flight two hours before it should have left.

The spine is every planned flight at that instant; its features come from the offline store's as-of join, so nothing
that was not known then can enter. January only warms the 28-day aggregates up. February to September train, October to
December judge. Every choice of columns and sizes was made inside the training months (August and September judged
what was trained on February to July); none was made on the held-out ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import FeatureState
from core_engine.predictors.declaration import Column, FeatureUse, OnState
from core_engine.scoring.encoding import RowEncoder
from examples.flights.predictors import FEATURES, Categories, columns
from featurestore.definitions import FeatureView
from featurestore.offline.store import STATE_SUFFIX, OfflineStore

LEAD = timedelta(hours=2)  # a prediction is made this long before scheduled departure
TRAIN_FROM, HELD_OUT_FROM = date(2013, 2, 1), date(2013, 10, 1)  # local days of departure
ENTITY_COLUMNS = {"route": "route", "carrier": "carrier", "airport": "origin"}
REFS = tuple(use.ref for use in FEATURES)


@dataclass(frozen=True, slots=True)
class Rows:
    """Encoded flights whose outcome is known: `matrix` [num_rows, num_columns], `late` and local `day` [num_rows]."""

    matrix: npt.NDArray[np.float32]
    late: npt.NDArray[np.bool_]
    day: npt.NDArray[np.datetime64]


@dataclass(frozen=True, slots=True)
class Split:
    """Training and held-out rows. A cancelled or diverted flight has no outcome and is in neither; those of the
    held-out months are counted."""

    columns: tuple[Column, ...]
    categories: Categories
    train: Rows
    held_out: Rows
    held_out_without_label: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked when: the columns of the answer's row, the instant of each flight's prediction, and what a request
    then says beside what is planned."""

    columns: Callable[[Categories], tuple[Column, ...]]
    as_of: Callable[[pa.Table], pa.Array]
    facts: tuple[str, ...] = ()


AHEAD = Question(columns, lambda flights: pc.subtract(flights["scheduled_departure"], pa.scalar(LEAD)))


def build_split(flights: pa.Table, views: Sequence[FeatureView], question: Question = AHEAD) -> Split:
    """`flights` as `data.FlightData` has them; the views' history must have been written."""
    known = known_rows(flights, views, question)
    day = local_days(flights)
    training = (day >= np.datetime64(TRAIN_FROM)) & (day < np.datetime64(HELD_OUT_FROM))
    held_out = day >= np.datetime64(HELD_OUT_FROM)
    categories = categories_of(flights.filter(pa.array(training)))
    encoder = RowEncoder(question.columns(categories))
    matrix = encode_known(encoder, known)
    has_label = flights["late"].is_valid().to_numpy()
    late = pc.fill_null(flights["late"], False).to_numpy()

    def rows(mask: npt.NDArray[np.bool_]) -> Rows:
        return Rows(matrix[mask], late[mask], day[mask])

    return Split(
        columns=encoder.columns,
        categories=categories,
        train=rows(training & has_label),
        held_out=rows(held_out & has_label),
        held_out_without_label=int((held_out & ~has_label).sum()),
    )


def known_rows(flights: pa.Table, views: Sequence[FeatureView], question: Question = AHEAD) -> pa.Table:
    """The request's inputs of every flight, its prediction instant `as_of`, and the features known then with states."""
    planned = ("carrier", "origin", "dest", "route", "distance", "offset_s", "scheduled_departure")
    inputs = flights.select([*planned, *question.facts]).append_column("as_of", question.as_of(flights))
    return OfflineStore(views).as_of_join(inputs, REFS, ENTITY_COLUMNS, "as_of")


def encode_known(encoder: RowEncoder, known: pa.Table) -> npt.NDArray[np.float32]:
    """Columns of `known_rows`, float32 [num_rows, num_columns], as the ladder would have encoded each row."""
    names = [name for name in known.column_names if not name.endswith(STATE_SUFFIX)]
    table: dict[str, npt.NDArray[Any]] = {name: known[name].to_numpy() for name in names}
    table |= {use.ref: _judged(use, known) for use in FEATURES}
    return encoder.encode_table(table, {"scheduled_departure": table["offset_s"]})


def _judged(use: FeatureUse, known: pa.Table) -> npt.NDArray[Any]:
    """What the columns see of a feature: the declaration's default where its state asks for it, else what was found."""
    values, states = known[use.ref], known[use.ref + STATE_SUFFIX]
    actions = {
        FeatureState.MISSING: use.on_missing,
        FeatureState.STALE: use.on_stale,
        FeatureState.NULL: use.on_null,
    }
    replaced = pa.array([state.value for state, action in actions.items() if action is OnState.DEFAULT], pa.string())
    default = pa.scalar(use.default, pa.float64())
    judged = pc.if_else(pc.is_in(states, value_set=replaced), default, values.cast(pa.float64()))
    return np.asarray(judged.to_numpy())


def categories_of(flights: pa.Table) -> Categories:
    def distinct(name: str) -> tuple[str, ...]:
        return tuple(sorted(pc.unique(flights[name]).to_pylist()))

    return Categories(carriers=distinct("carrier"), origins=distinct("origin"), dests=distinct("dest"))


def local_days(flights: pa.Table) -> npt.NDArray[np.datetime64]:
    """The day of scheduled departure on the airport's own clock, [num_rows]."""
    offsets = flights["offset_s"].to_numpy().astype("timedelta64[s]")
    days: npt.NDArray[np.datetime64] = (flights["scheduled_departure"].to_numpy() + offsets).astype("datetime64[D]")
    return days

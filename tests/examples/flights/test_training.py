from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from core_engine.contracts import FeatureRow, FeatureState, FeatureValue
from core_engine.predictors.declaration import OnState
from core_engine.predictors.feature_use import judge
from core_engine.scoring.encoding import RowEncoder
from examples.flights.data import FlightData
from examples.flights.predictors import FEATURES, Categories, columns
from examples.flights.training import (
    HELD_OUT_FROM,
    REFS,
    TRAIN_FROM,
    Split,
    build_split,
    categories_of,
    encode_known,
    known_rows,
    local_days,
)
from featurestore.definitions import FeatureView
from featurestore.offline.store import STATE_SUFFIX

LAST_OF_JANUARY = np.datetime64("2013-01-31")


class TestSplit:
    def test_every_labelled_flight_of_the_months_is_there_once(self, split: Split, data: FlightData) -> None:
        assert len(split.train.late) == 218_339  # February to September
        assert len(split.held_out.late) == 82_609  # October to December
        assert split.held_out_without_label == 1_683
        assert split.train.matrix.shape == (218_339, len(split.columns))
        assert split.train.matrix.dtype == np.float32

    def test_training_days_lie_before_held_out_days(self, split: Split) -> None:
        assert split.train.day.min() == np.datetime64(TRAIN_FROM)
        assert split.train.day.max() < np.datetime64(HELD_OUT_FROM) == split.held_out.day.min()

    def test_labels_are_the_sources(self, split: Split, data: FlightData) -> None:
        in_training = (local_days(data.flights) >= np.datetime64(TRAIN_FROM)) & (
            local_days(data.flights) < np.datetime64(HELD_OUT_FROM)
        )
        delays = data.flights["arrival_delay"].filter(pa.array(in_training)).drop_null().to_numpy()
        np.testing.assert_array_equal(split.train.late, delays >= 15)

    def test_categories_are_those_of_the_training_months(self, split: Split) -> None:
        assert "UA" in split.categories.carriers
        assert split.categories.origins == ("EWR", "JFK", "LGA")
        assert "LEX" not in split.categories.dests  # flown once, in November

    def test_the_model_is_judged_on_no_row_that_it_would_pass_on(
        self, data: FlightData, views: tuple[FeatureView, ...]
    ) -> None:
        """Every flight of the held-out months has the features without which the ladder goes to the next rung."""
        held_out = data.flights.filter(pa.array(local_days(data.flights) >= np.datetime64(HELD_OUT_FROM)))
        known = known_rows(held_out, views)
        for use in FEATURES:
            if use.on_missing is OnState.NEXT_RUNG:
                assert pc.sum(pc.equal(known[use.ref + STATE_SUFFIX], "missing")).as_py() == 0

    def test_the_day_of_a_late_evening_flight_is_the_local_one(self) -> None:
        departures = pa.array([np.datetime64("2013-02-01T04:30", "us")]).cast(pa.timestamp("us", tz="UTC"))
        flights = pa.table({"scheduled_departure": departures, "offset_s": [-5 * 3600]})
        assert local_days(flights).tolist() == [LAST_OF_JANUARY.astype(object)]


class TestKnownRows:
    def test_features_are_as_of_two_hours_before_departure(
        self, data: FlightData, views: tuple[FeatureView, ...]
    ) -> None:
        known = known_rows(data.flights.slice(100_000, 10), views)
        lead = known["scheduled_departure"].to_numpy() - known["as_of"].to_numpy()
        assert (lead == np.timedelta64(2, "h")).all()
        assert set(REFS) <= set(known.column_names)

    def test_what_happened_to_the_flight_itself_is_no_column(
        self, data: FlightData, views: tuple[FeatureView, ...]
    ) -> None:
        known = known_rows(data.flights.slice(0, 1), views)
        outcome = {"departure_delay", "arrival_delay", "departure", "arrival", "late"}
        assert not outcome & set(known.column_names)
        assert not outcome & {column.source for column in columns(CATEGORIES)}


CATEGORIES = Categories(carriers=("AA", "UA"), origins=("EWR", "JFK", "LGA"), dests=("LAX", "ORD"))


class TestNoSkew:
    """A training row is what the ladder would encode from the same reads, state by state."""

    def test_on_real_rows(self, data: FlightData, views: tuple[FeatureView, ...]) -> None:
        known = known_rows(pa.concat_tables([data.flights.slice(i, 20) for i in (0, 60_000, 336_700)]), views)
        assert_encoded_as_served(known)

    @pytest.mark.parametrize("state", FeatureState)
    def test_in_every_state(self, state: FeatureState) -> None:
        has_value = state not in (FeatureState.MISSING, FeatureState.NULL)
        known = pa.table(
            {
                "carrier": ["AA"],
                "origin": ["JFK"],
                "dest": ["LAX"],
                "distance": [2475],
                "offset_s": [-5 * 3600],
                "scheduled_departure": pa.array([1_384_549_200_000_000], pa.timestamp("us", tz="UTC")),
            }
            | {ref: pa.array([7.5 if has_value else None], pa.float64()) for ref in REFS}
            | {ref + STATE_SUFFIX: [state.value] for ref in REFS}
        )
        assert_encoded_as_served(known)


def assert_encoded_as_served(known: pa.Table) -> None:
    encoder = RowEncoder(columns(CATEGORIES))
    served = [encoder.encode(inputs_of(row), features_of(row)) for row in known.to_pylist()]
    np.testing.assert_array_equal(encode_known(encoder, known), np.stack(served))


def inputs_of(row: dict[str, Any]) -> dict[str, Any]:
    own_clock = timezone(timedelta(seconds=row["offset_s"]))
    return row | {"scheduled_departure": row["scheduled_departure"].astimezone(own_clock)}


def features_of(row: dict[str, Any]) -> dict[str, Any]:
    """By the ladder's own function, from what a reader would have returned."""
    values = {ref: FeatureValue(row[ref], FeatureState(row[ref + STATE_SUFFIX])) for ref in REFS}
    return dict(judge(FEATURES, FeatureRow(values)).values)


def test_the_defaults_of_a_lost_window_are_about_the_means_of_the_training_months(
    data: FlightData, views: tuple[FeatureView, ...]
) -> None:
    days = local_days(data.flights)
    training = (days >= np.datetime64(TRAIN_FROM)) & (days < np.datetime64(HELD_OUT_FROM))
    known = known_rows(data.flights.filter(pa.array(training)), views)
    for use in FEATURES:
        if use.default is not None:
            assert pc.mean(known[use.ref]).as_py() == pytest.approx(use.default, rel=0.05)


def test_a_slice_without_held_out_flights_is_split_too(data: FlightData, views: tuple[FeatureView, ...]) -> None:
    split = build_split(data.flights.slice(100_000, 1_000), views)
    assert len(split.held_out.late) == 0
    assert len(split.train.late) > 900
    assert split.categories == categories_of(data.flights.slice(100_000, 1_000))

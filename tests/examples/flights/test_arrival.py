"""`arrival_delay` and its events: what is known at departure, and nothing of the arrival."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from core_engine.predictors.declaration import Artifact
from core_engine.predictors.inputs import check_inputs, entity_keys
from core_engine.predictors.soundness import check_declaration
from core_engine.scoring.torch_scorer import load_scorer
from examples.flights.arrival import AT_DEPARTURE, arrival_columns, arrival_delay, departed
from examples.flights.clock import shifted_clock
from examples.flights.data import FlightData
from examples.flights.departures import DepartureEvent, departure_events
from examples.flights.fitting import fit_scorer
from examples.flights.predictors import Artifacts, Categories, delay_risk, flight_notice
from examples.flights.prepare import Prepared
from examples.flights.quality import Quality, RungQuality, auc
from examples.flights.route_risk import route_risk
from examples.flights.training import Split, build_split, known_rows
from featurestore.definitions import FeatureView
from featurestore.windows.plan import WindowPlan
from streaming.events import parse_event

NOW = datetime(2026, 11, 30, 15, 42, 7, tzinfo=UTC)
NONE = RungQuality(auc=0, auc_low=0, auc_high=0, mean_predicted=0, ece=0)
QUALITY = Quality(
    first_day="", last_day="", num_days=0, num_flights=0, num_without_label=0, rate=0,
    model=NONE, student=NONE, prior=NONE,
)  # fmt: skip
NOWHERE = Artifact(path="nowhere", sha256="")
ARTIFACTS = Artifacts(NOWHERE, NOWHERE, NOWHERE, 0.2)
CATEGORIES = Categories(("UA",), ("JFK",), ("LAX",))


@pytest.fixture(scope="module")
def at_departure(data: FlightData, views: tuple[FeatureView, ...]) -> Split:
    return build_split(departed(data.flights), views, AT_DEPARTURE)


@pytest.fixture(scope="module")
def prepared(data: FlightData, views: tuple[FeatureView, ...], tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """All flights, without the training."""
    path: Path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    pyarrow.parquet.write_table(data.flights, path)
    return Prepared(
        views=views,
        delay_risk=delay_risk(CATEGORIES, ARTIFACTS),
        arrival_delay=arrival_delay(CATEGORIES, ARTIFACTS),
        route_risk=route_risk(CATEGORIES, ARTIFACTS),
        flight_notice=flight_notice(),
        clock=shifted_clock(NOW),
        quality=QUALITY,
        arrival_quality=QUALITY,
        flights_path=path,
        seconds={},
        from_cache=False,
    )


class TestTraining:
    def test_features_are_those_known_when_it_left(self, data: FlightData, views: tuple[FeatureView, ...]) -> None:
        flights = departed(data.flights).slice(100_000, 50)
        known = known_rows(flights, views, AT_DEPARTURE)
        assert known["as_of"].equals(flights["departure"])
        assert known["departure_delay"].equals(flights["departure_delay"])

    def test_the_own_departure_is_a_column_and_the_arrival_is_none(self, at_departure: Split) -> None:
        names = [column.name for column in at_departure.columns]
        assert names[-1] == "departure_delay"
        assert not any("arrival" in name for name in names)
        assert not np.isnan(at_departure.train.matrix[:, -1]).any()

    def test_only_flights_that_left_are_rows(self, at_departure: Split, split: Split) -> None:
        assert len(at_departure.train.late) == len(split.train.late), "what never left has no outcome either"
        assert at_departure.held_out_without_label < split.held_out_without_label

    def test_the_model_beats_the_departure_delay_alone(self, at_departure: Split, tmp_path: Path) -> None:
        """On all held-out flights, trained for one epoch; the slow test of the build has the real one."""
        scorer = fit_scorer(at_departure.train, at_departure.columns, tmp_path / "scorer", lambda _done, _all: None, 1)
        rows = at_departure.held_out
        scores = load_scorer(scorer.path, scorer.sha256).score(rows.matrix)
        assert auc(rows.late, scores) > auc(rows.late, rows.matrix[:, -1]) > 0.8


class TestDeclaration:
    def test_it_hangs_together(self) -> None:
        check_declaration(arrival_delay(CATEGORIES, ARTIFACTS))
        assert [c.name for c in arrival_columns(CATEGORIES)][-1] == "departure_delay"


class TestEvents:
    def test_the_last_departures_before_now_in_order(self, prepared: Prepared, data: FlightData) -> None:
        events = departure_events(prepared, NOW)
        times = [event.event_time for event in events]
        assert len(events) == 2000
        assert times == sorted(times)
        assert times[-1] <= NOW
        data_now = pa.scalar(prepared.clock.to_data(NOW), pa.timestamp("us", tz="UTC"))
        later = pc.sum(pc.less_equal(data.flights["departure"], data_now)).as_py()
        first = pa.scalar(prepared.clock.to_data(times[0]), pa.timestamp("us", tz="UTC"))
        assert later - pc.sum(pc.less(data.flights["departure"], first)).as_py() >= 2000
        assert NOW - times[-1] < timedelta(minutes=15), "an afternoon in New York"

    def test_a_later_now_brings_more(self, prepared: Prepared) -> None:
        earlier, later = departure_events(prepared, NOW, 10), departure_events(prepared, NOW + timedelta(hours=1), 200)
        assert set(earlier) <= set(later)

    def test_each_is_an_event_for_the_predictor_and_the_window(self, prepared: Prepared) -> None:
        plans = [WindowPlan(view) for view in prepared.views if view.window is not None]
        assert len(plans) == 1
        for departure in departure_events(prepared, NOW, 200):
            event = parse_event(departure.to_json(), NOW)
            inputs = {field.name: event.fields.get(field.name) for field in prepared.arrival_delay.inputs}
            checked = check_inputs(prepared.arrival_delay, inputs)
            assert entity_keys(prepared.arrival_delay, checked)["airport"] == departure.origin
            assert plans[0].key_of(event.fields) == departure.origin
            assert plans[0].amounts(event.fields)[0] == departure.departure_delay * 1_000_000
            assert event.event_time == departure.event_time

    def test_departure_is_schedule_plus_delay_on_the_airports_own_clock(self, prepared: Prepared) -> None:
        for departure in departure_events(prepared, NOW, 50):
            delay = timedelta(minutes=departure.departure_delay)
            assert departure.event_time == departure.scheduled_departure + delay
            assert departure.scheduled_departure.utcoffset() == timedelta(hours=-5)

    def test_ids_are_unique_and_the_outcome_stays_out(self, prepared: Prepared) -> None:
        events = departure_events(prepared, NOW)
        assert len({event.event_id for event in events}) == len(events)
        assert b"late" not in events[0].to_json()
        assert {event.late for event in events} >= {True, False}
        assert isinstance(events[0], DepartureEvent)

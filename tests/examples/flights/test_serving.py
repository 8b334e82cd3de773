"""What a reader finds at now under the shifted clock, whenever now is: all weekdays, all hours, across a year's end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from core_engine.contracts import FeatureState
from core_engine.predictors.declaration import Artifact, OnState
from core_engine.predictors.inputs import check_inputs, entity_keys
from examples.flights.arrival import arrival_delay
from examples.flights.clock import shifted_clock
from examples.flights.data import FlightData
from examples.flights.predictors import FEATURES, Artifacts, Categories, delay_risk, flight_notice
from examples.flights.prepare import Prepared
from examples.flights.quality import Quality, RungQuality
from examples.flights.route_risk import route_risk
from examples.flights.training import REFS
from examples.flights.upcoming import upcoming_flights
from featurestore.definitions import FeatureView
from featurestore.offline.store import STATE_SUFFIX, OfflineStore

START = datetime(2026, 12, 28, 0, 40, tzinfo=UTC)
INSTANTS = [START + timedelta(hours=17 * i) for i in range(10)]
NONE = RungQuality(auc=0, auc_low=0, auc_high=0, mean_predicted=0, ece=0)
QUALITY = Quality(
    first_day="", last_day="", num_days=0, num_flights=0, num_without_label=0, rate=0,
    model=NONE, student=NONE, prior=NONE,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole_year(data: FlightData, views: tuple[FeatureView, ...], tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """All flights and their features, without the training."""
    path: Path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    pyarrow.parquet.write_table(data.flights, path)
    nowhere = Artifact(path="nowhere", sha256="")
    return Prepared(
        views=views,
        delay_risk=delay_risk(Categories(("UA",), ("JFK",), ("LAX",)), Artifacts(nowhere, nowhere, nowhere, 0.2)),
        arrival_delay=arrival_delay(Categories(("UA",), ("JFK",), ("LAX",)), Artifacts(nowhere, nowhere, nowhere, 0.2)),
        route_risk=route_risk(Categories(("UA",), ("JFK",), ("LAX",)), Artifacts(nowhere, nowhere, nowhere, 0.2)),
        flight_notice=flight_notice(),
        clock=shifted_clock(START),
        quality=QUALITY,
        arrival_quality=QUALITY,
        flights_path=path,
        seconds={},
        from_cache=False,
    )  # fmt: skip


def read_at(prepared: Prepared, now: datetime) -> pa.Table:
    """The features of the 500 flights next due as known at `now`, by the store whose answers the online one shares."""
    predictor = prepared.delay_risk
    keys = [
        entity_keys(predictor, check_inputs(predictor, f.inputs)) for f in upcoming_flights(prepared, now)
    ]  # fmt: skip
    columns = {entity: [key[entity] for key in keys] for entity in ("route", "carrier", "airport")}
    at = pa.array([now] * len(keys), pa.timestamp("us", tz="UTC"))
    store = OfflineStore(prepared.views, prepared.clock.shift)
    return store.as_of_join(pa.table(columns | {"now": at}), REFS, {name: name for name in columns}, "now")


@pytest.mark.parametrize("now", INSTANTS, ids=lambda now: f"{now:%a %H:%M}")
def test_the_model_may_answer_at_least_99_of_100(whole_year: Prepared, now: datetime) -> None:
    known = read_at(replace(whole_year, clock=shifted_clock(now)), now)
    assert known.num_rows == 500
    for use in FEATURES:
        states = known[use.ref + STATE_SUFFIX]
        if use.on_missing is OnState.NEXT_RUNG:
            assert share(states, FeatureState.MISSING) <= 0.01
        assert share(states, FeatureState.STALE) <= 0.01
    assert share(known["airport_departures.flights" + STATE_SUFFIX], FeatureState.PRESENT) == 1.0
    assert share(known["weather_hourly.temp" + STATE_SUFFIX], FeatureState.PRESENT) == 1.0
    assert share(known["route_daily.flights" + STATE_SUFFIX], FeatureState.PRESENT) >= 0.98


def share(states: pa.ChunkedArray, state: FeatureState) -> float:
    return float(pc.mean(pc.equal(states, state.value).cast(pa.float64())).as_py())


def test_without_the_shift_everything_would_be_stale(whole_year: Prepared) -> None:
    store = OfflineStore(whole_year.views)
    spine = pa.table({"carrier": ["UA"], "now": pa.array([START], pa.timestamp("us", tz="UTC"))})
    today = store.as_of_join(spine, ["carrier_daily.late_share"], {"carrier": "carrier"}, "now")
    assert today["carrier_daily.late_share" + STATE_SUFFIX].to_pylist() == ["stale"]


def test_the_clock_running_on_after_the_start_keeps_its_shift(whole_year: Prepared) -> None:
    """`prepare` fixes the shift once: a week later the flights of the following data week are due."""
    later = START + timedelta(days=9)
    first = upcoming_flights(whole_year, later, 1)[0].scheduled_departure
    assert later + timedelta(hours=2) <= first < later + timedelta(hours=8)

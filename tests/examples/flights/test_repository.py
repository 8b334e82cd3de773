from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from core_engine.contracts import entity_key
from examples.flights.data import FlightData
from examples.flights.repository import FLIGHT_MOMENT, flight_repository
from featurestore.definitions import FeatureView
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
from featurestore.on_demand.join import on_demand_join
from featurestore.repository import check_repository

MOMENT = [f"flight_moment.{feature.name}" for feature in FLIGHT_MOMENT.features]
STORED = ["route_daily.mean_delay", "carrier_daily.mean_delay"]


def test_the_examples_repository_hangs_together(views: tuple[FeatureView, ...]) -> None:
    check_repository(flight_repository(views))


def test_a_flights_moment_is_that_of_its_airports_clock(data: FlightData, views: tuple[FeatureView, ...]) -> None:
    """Against the wall clock that the data itself carries: every planned flight of the days when the clocks changed."""
    at = data.flights["scheduled_departure"]
    days = pc.strftime(at, format="%Y-%m-%d")
    flights = data.flights.filter(pc.is_in(days, value_set=pa.array(["2013-03-10", "2013-03-11", "2013-11-03"])))
    assert flights.num_rows > 1_500
    spine = flights.select(["carrier", "origin", "dest", "route", "scheduled_departure", "offset_s"])
    columns = {"route": "route", "carrier": "carrier"}
    table = on_demand_join(
        OfflineStore(views), [FLIGHT_MOMENT], spine, [*MOMENT, *STORED], columns, "scheduled_departure"
    )
    for row in table.to_pylist():
        local_s = row["scheduled_departure"].timestamp() + row["offset_s"]
        assert row["flight_moment.hour"] == local_s // 3600 % 24
        assert row["flight_moment.weekday"] == (local_s // 86_400 + 3) % 7
        assert row["flight_moment.connection"] == entity_key(row["carrier"], row["origin"], row["dest"])
        assert 0 <= row["flight_moment.connection_bucket"] < 4096
        over, (route, carrier) = row["flight_moment.route_over_carrier"], (row[ref] for ref in STORED)
        assert over == (None if route is None or carrier is None else route - carrier)
        assert row[f"flight_moment.hour{STATE_SUFFIX}"] == "present"

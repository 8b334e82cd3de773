"""Trailing windows against their definition, written out slowly; declarations against what is built."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from core_engine.errors import ConfigurationError
from examples.flights.data import FlightData
from examples.flights.features import TILES, WINDOWS, TrailingWindow, build_history, feature_views
from featurestore.definitions import FeatureView
from featurestore.offline.store import OfflineStore

HOUR = timedelta(hours=1)
WINDOW_BY_VIEW = {window.view: window for window in WINDOWS}


@pytest.mark.parametrize("view", WINDOW_BY_VIEW)
def test_rows_are_the_definition(view: str, data: FlightData, history: dict[str, pa.Table]) -> None:
    """Forty rows of each view, recounted from the flights with masks."""
    window, table = WINDOW_BY_VIEW[view], history[view]
    happened = data.flights.filter(pc.is_valid(data.flights[window.happened]))
    keys, instants = happened[window.key].to_numpy(zero_copy_only=False), happened[window.happened].to_numpy()
    delays = happened[window.delay].to_numpy()
    for i in np.random.default_rng(7).integers(0, table.num_rows, 40).tolist():
        row = {name: table[name][i].as_py() for name in ("entity_key", "mean_delay", "late_share", "flights")}
        end = table["event_time"].to_numpy()[i]
        own = (keys == row["entity_key"]) & (instants <= end) & (instants > end - span(window))
        assert row["flights"] == own.sum()
        if own.any():
            assert row["mean_delay"] == pytest.approx(delays[own].mean())
            assert row["late_share"] == pytest.approx((delays[own] >= 15).mean())
        else:
            assert row["mean_delay"] is None
            assert row["late_share"] is None


def span(window: TrailingWindow) -> np.timedelta64:
    return np.timedelta64(window.tile * window.num_tiles)


@pytest.mark.parametrize("view", WINDOW_BY_VIEW)
def test_a_row_is_known_after_the_end_of_its_window(view: str, history: dict[str, pa.Table]) -> None:
    window, table = WINDOW_BY_VIEW[view], history[view]
    known_after = table["created_time"].to_numpy() - table["event_time"].to_numpy()
    assert (known_after == np.timedelta64(window.known_after)).all()
    us = table["event_time"].cast(pa.int64()).to_numpy()
    assert (us % (window.tile // timedelta(microseconds=1)) == window.phase // timedelta(microseconds=1)).all()


def test_the_airport_window_has_a_row_every_quarter_of_an_hour_busy_or_not(history: dict[str, pa.Table]) -> None:
    table = history["airport_departures"]
    assert table.group_by("entity_key").aggregate([]).num_rows == 3
    for airport in ("EWR", "JFK", "LGA"):
        ticks = table.filter(pc.equal(table["entity_key"], airport))["event_time"].to_numpy()
        assert (np.diff(ticks) == np.timedelta64(15, "m")).all()
    idle = table.filter(pc.equal(table["flights"], 0))
    assert idle.num_rows > 1_000
    assert idle["mean_delay"].null_count == idle.num_rows


def test_a_departure_on_the_tick_belongs_to_the_tick() -> None:
    tick = np.datetime64("2013-05-01T12:00", "us")
    minute = np.timedelta64(1, "m")
    departures = np.array([tick - 120 * minute, tick - 119 * minute, tick, tick + minute])
    table = build_history(FlightData(flights_departing(departures, [1000, 20, 10, 1000]), no_weather()))[
        "airport_departures"
    ]
    at = table["event_time"].to_numpy().tolist().index(tick.astype(object))
    row = {name: table[name][at].as_py() for name in ("mean_delay", "late_share", "flights")}
    assert row == {"mean_delay": 15.0, "late_share": 0.5, "flights": 2}


def flights_departing(departures: np.ndarray, delays: list[int]) -> pa.Table:
    instants = pa.array(departures).cast(pa.timestamp("us", tz="UTC"))
    count = len(departures)
    return pa.table(
        {
            "carrier": ["UA"] * count, "origin": ["JFK"] * count, "route": ["JFK-LAX"] * count,
            "departure": instants, "departure_delay": delays, "arrival": instants, "arrival_delay": delays,
        }
    )  # fmt: skip


def no_weather() -> pa.Table:
    instant = pa.timestamp("us", tz="UTC")
    numbers = ("temp", "wind_speed", "wind_gust", "precip", "visib", "humid", "pressure")
    kinds = {"airport": pa.string(), "event_time": instant, "created_time": instant}
    kinds |= dict.fromkeys(numbers, pa.float64())
    return pa.table({name: pa.array([], kind) for name, kind in kinds.items()})


def test_a_route_leaves_the_history_when_it_was_not_flown_for_the_whole_window(history: dict[str, pa.Table]) -> None:
    assert pc.min(history["route_daily"]["flights"]).as_py() == 1


def test_keys_and_instants_are_unique(history: dict[str, pa.Table]) -> None:
    for table in history.values():
        assert table.group_by(["entity_key", "event_time"]).aggregate([]).num_rows == table.num_rows


def test_views_declare_what_is_built(views: tuple[FeatureView, ...], history: dict[str, pa.Table]) -> None:
    assert {view.name for view in views} | {TILES} == set(history)
    for view in views:
        built = set(history[view.name].column_names) - {"entity_key", "event_time", "created_time"}
        assert {field.name for field in view.schema} == built
    OfflineStore(views)  # refuses a declaration that does not hang together


def test_times_to_live(views: tuple[FeatureView, ...]) -> None:
    ttl = {view.name: timedelta(seconds=view.ttl_s) for view in views}
    days = timedelta(days=3)
    assert ttl == {
        "route_daily": days, "carrier_daily": days, "weather_hourly": 3 * HOUR, "airport_departures": HOUR,
    }  # fmt: skip


def test_history_that_was_not_written_is_refused(tmp_path: Path) -> None:
    spine = pa.table({"route": ["JFK-LAX"], "as_of": pa.array([0], pa.timestamp("us", tz="UTC"))})
    with pytest.raises(ConfigurationError, match="route_daily"):
        OfflineStore(feature_views(tmp_path)).as_of_join(spine, ["route_daily.flights"], {"route": "route"}, "as_of")

"""No leakage: the world after t is rewritten in the source's own tables, and nothing known at or before t changes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights.data import FlightData, RawTables, connect, normalise
from examples.flights.features import build_history, feature_views, write_history
from examples.flights.training import REFS, known_rows
from featurestore.offline.store import STATE_SUFFIX

# From 1 February to 20 March: a blizzard (8 February), and the change of clocks (10 March).
INSTANTS = [
    "2013-02-08 20:00:00",  # on a tick of the airport window, in the blizzard
    "2013-02-14 08:00:00",  # the end of an operating day
    "2013-02-14 09:00:00",  # the nightly job is done
    "2013-03-10 07:15:00",  # a weather report comes out; clocks just went forward
    "2013-03-12 21:07:33",  # in the rush, on nothing
]


@pytest.fixture(scope="module")
def spring(raw: RawTables) -> RawTables:
    """Seven weeks of the source, in the order in which `normalise` gives flights."""
    with connect() as db:
        db.register("flights", raw.flights)
        db.register("weather", raw.weather)
        flights = db.sql(
            "SELECT * FROM flights WHERE month = 2 OR (month = 3 AND day <= 20)"
            " ORDER BY time_hour::TIMESTAMP + to_minutes(minute), carrier, flight, origin"
        ).to_arrow_table()
        weather = db.sql("SELECT * FROM weather WHERE month = 2 OR (month = 3 AND day <= 20)").to_arrow_table()
    return RawTables(flights, weather, raw.airports)


@pytest.fixture(scope="module")
def spring_data(spring: RawTables) -> FlightData:
    data = normalise(spring)
    assert data.flights["flight"].equals(spring.flights["flight"])  # row by row the same flights
    return data


def rewritten(spring: RawTables, data: FlightData, t: str) -> RawTables:
    """Everything that was not known at `t` is different: delays, cancellations, diversions, weather, later plans.

    A new instant stays after `t`, or it would be another past.
    """
    flights = {name: spring.flights[name].to_numpy(zero_copy_only=False) for name in spring.flights.column_names}
    at = np.datetime64(t, "us")
    departs, arrives, planned = (data.flights[n].to_numpy() for n in ("departure", "arrival", "scheduled_departure"))
    is_grounded = ~(departs <= at)  # not left by t, or never
    is_open = ~(arrives <= at)  # not arrived by t, or never
    to_t = np.maximum((at - planned) // np.timedelta64(1, "m"), 0) + 1  # a delay that ends after t
    row = np.arange(len(planned))
    dep_delay = np.where(is_grounded, to_t + row % 90, flights["dep_delay"])
    dep_delay = np.where(is_grounded & (row % 7 == 0), np.nan, dep_delay)
    arr_delay = np.where(is_open, to_t + (row * 31) % 300, flights["arr_delay"])
    arr_delay = np.where(is_open & (np.isnan(dep_delay) | (row % 11 == 0)), np.nan, arr_delay)
    keep = ~(is_grounded & (planned > at) & (row % 5 == 0))  # flights that are planned no more
    changed = spring.flights.set_column(*column_of(spring.flights, "dep_delay", dep_delay))
    changed = changed.set_column(*column_of(changed, "arr_delay", arr_delay)).filter(pa.array(keep))
    return RawTables(changed, rewritten_weather(spring.weather, t), spring.airports)


def column_of(table: pa.Table, name: str, values: np.ndarray) -> tuple[int, str, pa.Array]:
    """Whole minutes with NaN as null, in place of the column `name`."""
    return table.column_names.index(name), name, pa.array(values, from_pandas=True).cast(pa.int64())


def rewritten_weather(weather: pa.Table, t: str) -> pa.Table:
    with connect() as db:
        db.register("weather", weather)
        after = f"time_hour::TIMESTAMP + INTERVAL 15 MINUTE > TIMESTAMP '{t}'"
        numbers = ("temp", "wind_speed", "wind_gust", "precip", "visib", "humid", "pressure")
        columns = ", ".join(f"CASE WHEN {after} THEN 3 * {n} + 1 ELSE {n} END AS {n}" for n in numbers)
        return db.sql(
            f"SELECT * REPLACE ({columns}) FROM weather WHERE NOT ({after} AND hour % 3 = 0)"
        ).to_arrow_table()


def known_until(data: FlightData, flights: pa.Table, t: str, folder: Path) -> pa.Table:
    """Features and states, from the history of `data`, of every flight whose prediction instant is `t` or before."""
    write_history(build_history(data), folder)
    known = known_rows(flights, feature_views(folder))
    until = pa.scalar(datetime.fromisoformat(f"{t}+00:00"), pa.timestamp("us", tz="UTC"))
    known = known.filter(pc.less_equal(known["as_of"], until))
    return known.select([name for ref in REFS for name in (ref, ref + STATE_SUFFIX)])


@pytest.mark.parametrize("t", INSTANTS)
def test_nothing_known_by_t_depends_on_what_came_after(
    t: str, spring: RawTables, spring_data: FlightData, tmp_path: Path
) -> None:
    other = normalise(rewritten(spring, spring_data, t))
    actual = known_until(spring_data, spring_data.flights, t, tmp_path / "actual")
    assert actual.num_rows > 5_000
    assert actual.equals(known_until(other, spring_data.flights, t, tmp_path / "other"))


@pytest.mark.parametrize("view", ["route_daily", "carrier_daily", "airport_departures", "weather_hourly"])
def test_the_rewriting_reaches_every_view(view: str, spring: RawTables, spring_data: FlightData) -> None:
    """Otherwise the test above would prove nothing: two days later each view sees another world."""
    t, later = INSTANTS[1], np.datetime64("2013-02-16T20:00", "us")
    other = normalise(rewritten(spring, spring_data, t))
    tables = [build_history(data)[view] for data in (spring_data, other)]
    seen = [table.filter(pa.array(table["created_time"].to_numpy() == latest(table, later))) for table in tables]
    assert not seen[0].equals(seen[1])


def latest(table: pa.Table, until: np.datetime64) -> np.datetime64:
    created = table["created_time"].to_numpy()
    return np.datetime64(created[created <= until].max())


def test_a_leak_of_one_minute_would_be_seen(spring: RawTables, spring_data: FlightData, tmp_path: Path) -> None:
    """The world is rewritten a minute too early, which is what features that look a minute ahead would see."""
    t = "2013-02-08 20:00:00"
    other = normalise(rewritten(spring, spring_data, "2013-02-08 19:59:00"))
    actual = known_until(spring_data, spring_data.flights, t, tmp_path / "actual")
    assert not actual.equals(known_until(other, spring_data.flights, t, tmp_path / "other"))


def test_a_flights_own_outcome_changes_none_of_its_features(
    spring: RawTables, spring_data: FlightData, tmp_path: Path
) -> None:
    """Rewriting at its own prediction instant rewrites its delays: they lie two hours ahead at the least."""
    t = INSTANTS[-1]
    other = normalise(rewritten(spring, spring_data, t))
    as_of = np.datetime64(t, "us")
    lead = spring_data.flights["scheduled_departure"].to_numpy() - as_of
    at_its_instant = (lead >= np.timedelta64(105, "m")) & (lead <= np.timedelta64(2, "h"))
    own = spring_data.flights.filter(pa.array(at_its_instant))
    assert own.num_rows > 5
    actual = known_until(spring_data, own, t, tmp_path / "actual")
    assert actual.num_rows == own.num_rows
    assert actual.equals(known_until(other, own, t, tmp_path / "other"))

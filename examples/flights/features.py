"""Feature views and their history: each row with the instant it is about and the instant it was known.

The three aggregates are trailing windows over tiles: events are counted into the tile (start, end] in which they
happened, and a row at a tile's end sums the tiles that the window covers. Nothing can enter a row before it happened,
by construction. The stream door later takes over `airport_departures` with the same tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from examples.flights.data import FlightData, connect
from featurestore.definitions import FeatureType, FeatureView, Field, ParquetSource

OWNER = "flight-operations"
DAY, HOUR, QUARTER = timedelta(days=1), timedelta(hours=1), timedelta(minutes=15)
NIGHT = timedelta(hours=8)  # an operating day ends at 08:00 UTC, 03:00 or 04:00 in New York, when nothing moves
WEATHER_FIELDS = ("temp", "wind_speed", "wind_gust", "precip", "visib", "humid", "pressure")


@dataclass(frozen=True, slots=True)
class TrailingWindow:
    """Mean delay, share late and count of `happened` events over `num_tiles` tiles of `tile`, per `key`."""

    view: str
    entity: str
    key: str  # column of the flights
    happened: str  # column of the instant at which the delay was known
    delay: str  # column of the delay, minutes
    tile: timedelta
    num_tiles: int
    phase: timedelta  # where tiles begin, after midnight UTC
    known_after: timedelta  # from the end of a tile to the row's created time
    ttl: timedelta
    keep_empty: bool  # a row where nothing happened: the window was watched and was empty
    description: str


WINDOWS = (
    TrailingWindow(
        "route_daily", "route", "route", "arrival", "arrival_delay", DAY, 28, NIGHT, HOUR, 3 * DAY, False,
        "Arrivals of the last 28 operating days by route; the nightly job is done an hour after the day ends.",
    ),
    TrailingWindow(
        "carrier_daily", "carrier", "carrier", "arrival", "arrival_delay", DAY, 28, NIGHT, HOUR, 3 * DAY, False,
        "Arrivals of the last 28 operating days by carrier; the nightly job is done an hour after the day ends.",
    ),
    TrailingWindow(
        "airport_departures", "airport", "origin", "departure", "departure_delay", QUARTER, 8, timedelta(), timedelta(),
        HOUR, True, "Departures that happened in the last two hours by airport, every quarter of an hour.",
    ),
)  # fmt: skip


def feature_views(folder: Path) -> tuple[FeatureView, ...]:
    """The declarations; `folder` is where `write_history` puts one Parquet file per view."""
    aggregates = tuple(_view(folder, w.view, w.entity, w.ttl, w.description, _aggregate_schema()) for w in WINDOWS)
    schema = tuple(Field(name=name, type=FeatureType.FLOAT64) for name in WEATHER_FIELDS)
    weather = _view(folder, "weather_hourly", "airport", 3 * HOUR, "Hourly observation at the airport.", schema)
    return (*aggregates, weather)


def _aggregate_schema() -> tuple[Field, ...]:
    """A window without events has a count of 0 and neither mean nor share: both are null, not zero."""
    return (
        Field(name="mean_delay", type=FeatureType.FLOAT64),
        Field(name="late_share", type=FeatureType.FLOAT64),
        Field(name="flights", type=FeatureType.INT64, default=0),
    )


def _view(
    folder: Path, name: str, entity: str, ttl: timedelta, description: str, schema: tuple[Field, ...]
) -> FeatureView:
    return FeatureView(
        name=name, version=1, entity=entity, schema=schema, source=ParquetSource(path=str(folder / f"{name}.parquet")),
        ttl_s=ttl.total_seconds(), owner=OWNER, description=description,
    )  # fmt: skip


def build_history(data: FlightData) -> dict[str, pa.Table]:
    """History per view: entity_key, event_time, created_time (UTC) and the view's features, by event time."""
    with connect() as db:
        db.register("flights", data.flights)
        db.register("weather", data.weather)
        history = {window.view: db.sql(_trailing_sql(window)).to_arrow_table() for window in WINDOWS}
        columns = ", ".join(WEATHER_FIELDS)
        history["weather_hourly"] = db.sql(
            f"SELECT airport AS entity_key, event_time, created_time, {columns} FROM weather ORDER BY 2, 1"
        ).to_arrow_table()
    return history


def write_history(history: dict[str, pa.Table], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in history.items():
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")


def _trailing_sql(window: TrailingWindow) -> str:
    """Events to tiles, tiles onto a grid without gaps, then a row-counted frame: one pass, no self-join."""
    tile_us, phase_us = window.tile // timedelta(microseconds=1), window.phase // timedelta(microseconds=1)
    known_us = window.known_after // timedelta(microseconds=1)
    return f"""
    WITH tiles AS (
      SELECT {window.key} AS entity_key,
        (epoch_us({window.happened}) - {phase_us} + {tile_us} - 1) // {tile_us} AS tile,
        count(*) AS n, sum({window.delay}) AS total, count(*) FILTER ({window.delay} >= 15) AS late
      FROM flights WHERE {window.happened} IS NOT NULL GROUP BY ALL
    ), grid AS (
      SELECT entity_key, tile FROM (SELECT DISTINCT entity_key FROM tiles),
        (SELECT unnest(range(min(tile), max(tile) + 1)) AS tile FROM tiles)
    ), rolled AS (
      SELECT entity_key, tile, sum(n) OVER w AS n, sum(total) OVER w AS total, sum(late) OVER w AS late
      FROM grid LEFT JOIN tiles USING (entity_key, tile)
      WINDOW w AS (PARTITION BY entity_key ORDER BY tile ROWS BETWEEN {window.num_tiles - 1} PRECEDING AND CURRENT ROW)
    )
    SELECT entity_key, make_timestamptz(tile * {tile_us} + {phase_us}) AS event_time,
      make_timestamptz(tile * {tile_us} + {phase_us + known_us}) AS created_time,
      (total / n)::DOUBLE AS mean_delay, (late / n)::DOUBLE AS late_share, coalesce(n, 0)::BIGINT AS flights
    FROM rolled WHERE n > 0 OR {window.keep_empty} ORDER BY 2, 1
    """

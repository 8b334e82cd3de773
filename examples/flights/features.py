"""Feature views and their history: each row with the instant it is about and the instant it was known.

The three aggregates are trailing windows over tiles: events are counted into the tile (start, end] in which they
happened, and a row at a tile's end sums the tiles that the window covers. Nothing can enter a row before it happened,
by construction. Online, the stream door keeps `airport_departures` by the same tiles: its history is written as tiles
too, from which the online store is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet

from examples.flights.data import FlightData, connect
from featurestore.definitions import (
    Aggregate,
    AggregateKind,
    FeatureType,
    FeatureView,
    Field,
    ParquetSource,
    Window,
)

OWNER = "flight-operations"
MICROSECOND = timedelta(microseconds=1)
DAY, HOUR, QUARTER = timedelta(days=1), timedelta(hours=1), timedelta(minutes=15)
NIGHT = timedelta(hours=8)  # an operating day ends at 08:00 UTC, 03:00 or 04:00 in New York, when nothing moves
DEPARTURES = "departures"  # the topic of departure events
STREAMED = "airport_departures"
TILES = f"{STREAMED}_tiles"
LATE_MINUTES = 15
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
    aggregates = tuple(_streamed(folder, view) if view.name == STREAMED else view for view in aggregates)
    schema = tuple(Field(name=name, type=FeatureType.FLOAT64) for name in WEATHER_FIELDS)
    weather = _view(folder, "weather_hourly", "airport", 3 * HOUR, "Hourly observation at the airport.", schema)
    return (*aggregates, weather)


def _streamed(folder: Path, view: FeatureView) -> FeatureView:
    """The view with its window: the same tiles as in `WINDOWS`, fed by departure events as they come.

    Version 2: version 1 was a row per quarter of an hour online too. Half an hour of grace: what is reported later than
    that changes the mean of a window which is nearly over.
    """
    trailing = next(window for window in WINDOWS if window.view == view.name)
    window = Window(
        topic=DEPARTURES,
        key=(trailing.key,),
        tile_s=int(trailing.tile.total_seconds()),
        num_tiles=trailing.num_tiles,
        grace_s=1800,
        aggregates=(
            Aggregate(feature="mean_delay", kind=AggregateKind.MEAN, of=trailing.delay),
            Aggregate(feature="late_share", kind=AggregateKind.MEAN, of=trailing.delay, at_least=LATE_MINUTES),
            Aggregate(feature="flights", kind=AggregateKind.COUNT),
        ),
        tiles=ParquetSource(path=str(folder / f"{TILES}.parquet")),
    )
    return msgspec.structs.replace(view, version=2, window=window)


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
    """History per view: entity_key, event_time, created_time (UTC) and the view's features, by event time.

    And the tiles of the streamed one, with the sums that its window declares.
    """
    with connect() as db:
        db.register("flights", data.flights)
        db.register("weather", data.weather)
        history = {window.view: db.sql(_trailing_sql(window)).to_arrow_table() for window in WINDOWS}
        history[TILES] = db.sql(_tiles_history_sql()).to_arrow_table()
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
    tile_us, phase_us = window.tile // MICROSECOND, window.phase // MICROSECOND
    known_us = window.known_after // MICROSECOND
    return f"""
    WITH tiles AS ({_tiles_sql(window)}), grid AS (
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


def _tiles_sql(window: TrailingWindow) -> str:
    """Tile `tile` holds the events of its `tile` units of time after the phase, its end included."""
    tile_us, phase_us = window.tile // MICROSECOND, window.phase // MICROSECOND
    return f"""
      SELECT {window.key} AS entity_key,
        (epoch_us({window.happened}) - {phase_us} + {tile_us} - 1) // {tile_us} AS tile,
        count(*) AS n, sum({window.delay}) AS total, count(*) FILTER ({window.delay} >= {LATE_MINUTES}) AS late
      FROM flights WHERE {window.happened} IS NOT NULL GROUP BY ALL
    """


def _tiles_history_sql() -> str:
    window = next(window for window in WINDOWS if window.view == STREAMED)
    ends = f"make_timestamptz(tile * {window.tile // MICROSECOND} + {window.phase // MICROSECOND})"
    return f"""
    SELECT entity_key, {ends} AS event_time, {ends} AS created_time, n AS events,
      total::DOUBLE AS "{window.delay}", late::DOUBLE AS "{window.delay}>={LATE_MINUTES}"
    FROM ({_tiles_sql(window)}) ORDER BY tile, entity_key
    """

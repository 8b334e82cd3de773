"""A windowed view that counts events, with the history of its events in a file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from featurestore.definitions import Aggregate, AggregateKind, FeatureType, FeatureView, Field, ParquetSource, Window
from tests.featurestore.rows import unique

TILE_S = 60


def counting_view(folder: Path, instants: Sequence[datetime]) -> FeatureView:
    """One event of entity `JFK` at each of `instants`, known at once. Its tiles and rows are not made yet."""
    times = pa.array(instants, pa.timestamp("us", tz="UTC"))
    columns = {"event_time": times, "created_time": times, "origin": ["JFK"] * len(instants)}
    coordinates = {"source": ["t/0"] * len(instants), "offset": pa.array(range(len(instants)), pa.int64())}
    pq.write_table(pa.table({**columns, **coordinates}), folder / "events.parquet")
    window = Window(
        topic="t",
        key=("origin",),
        tile_s=TILE_S,
        num_tiles=2,
        grace_s=TILE_S,
        aggregates=(Aggregate(feature="events", kind=AggregateKind.COUNT),),
        tiles=ParquetSource(path=str(folder / "tiles.parquet")),
        events=ParquetSource(path=str(folder / "events.parquet")),
    )
    return FeatureView(
        name=unique("busy"),
        version=1,
        entity="airport",
        schema=(Field(name="events", type=FeatureType.INT64),),
        ttl_s=3600.0,
        owner="tests",
        source=ParquetSource(path=str(folder / "rows.parquet")),
        window=window,
    )

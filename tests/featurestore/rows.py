"""Views, rows and Parquet files as the tests need them. Names are unique, so that tests can share one server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, settings

from featurestore.definitions import FeatureType, FeatureView, Field, ParquetSource, StoredRow

PROPERTY = settings(  # a busy machine is no failure, and examples may share a server: their keys are unique
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
NOW = datetime.now(UTC).replace(microsecond=123_456)  # real, because the server expires keys by its own clock
HOUR = timedelta(hours=1)
SOURCE_TYPES = {
    "entity_key": pa.string(),
    "event_time": pa.timestamp("us", tz="UTC"),
    "created_time": pa.timestamp("us", tz="UTC"),
}
_numbers = itertools.count()


def unique(word: str) -> str:
    return f"{word}_{os.getpid()}_{next(_numbers)}_{int(NOW.timestamp())}"


def make_view(
    *fields: Field, name: str = "", ttl_s: float = 3600.0, entity: str = "plane", path: str = "none", version: int = 1
) -> FeatureView:
    schema = fields or (Field(name="delay", type=FeatureType.INT64),)
    return FeatureView(
        name=name or unique("view"),
        version=version,
        entity=entity,
        schema=schema,
        source=ParquetSource(path=path),
        ttl_s=ttl_s,
        owner="tests",
    )


def row(
    key: str,
    values: Mapping[str, Any],
    event_time: datetime = NOW,
    created_time: datetime | None = None,
    offset: int = 0,
) -> StoredRow:
    return StoredRow(
        key=key,
        event_time=event_time,
        created_time=event_time if created_time is None else created_time,
        values=dict(values),
        offset=offset,
    )


def write_source(path: Path, columns: Mapping[str, Sequence[Any] | pa.Array]) -> str:
    """A view's history with the usual three columns and `columns`' own; Python lists take the usual types."""
    table = {
        name: column if isinstance(column, pa.Array) else pa.array(column, SOURCE_TYPES.get(name))
        for name, column in columns.items()
    }
    pq.write_table(pa.table(table), path)
    return str(path)

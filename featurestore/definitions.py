"""Feature views as data: entity, typed schema, source, TTL, owner, version. Declared in Python, stored as JSON."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any

import msgspec

from core_engine.errors import ConfigurationError


class FeatureType(enum.StrEnum):
    BOOL = "bool"
    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"
    BYTES = "bytes"
    TIMESTAMP = "timestamp"  # aware, microseconds
    DECIMAL = "decimal"  # 38 digits, `decimal_places` of them after the point


class Entity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What features are about. `join_keys` name the parts of its key, in the order of `contracts.entity_key`."""

    name: str
    join_keys: tuple[str, ...]
    owner: str
    description: str = ""


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One feature. Where a stored row leaves it out, `default` is served (state `default`), or else `null`.

    A list holds values of `type`, none of them null. With `refuse_nan` a NaN is an error where it is written or read
    from a source. A decimal's default is a string, as JSON would round it.
    """

    name: str
    type: FeatureType
    default: bool | int | float | str | None = None
    is_list: bool = False
    decimal_places: int = 0
    refuse_nan: bool = False


class ParquetSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """History in Parquet: one row per entity and event, with the instant it was about and the instant it was known."""

    path: str
    key_column: str = "entity_key"
    event_time_column: str = "event_time"
    created_time_column: str = "created_time"


class AggregateKind(enum.StrEnum):
    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STDDEV = "stddev"  # of the population: divided by the number of events
    LAST = "last"  # the `size` newest, newest first, by (event time, source, offset)
    DISTINCT = "distinct"  # approximate number of distinct values
    QUANTILE = "quantile"  # approximate; `quantile` from 0 to 1


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One feature of a window: how many events, or what `kind` makes of their field `of`.

    With `at_least`, an event is 1 where its field reaches that number and 0 where it does not: the mean is a share.
    Only `distinct` takes a field of strings. Types of the view's schema: count and distinct int64, last a list of
    float64, all others float64.
    """

    feature: str
    kind: AggregateKind
    of: str | None = None
    at_least: float | None = None
    size: int | None = None
    quantile: float | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A window over tumbling tiles, kept online by the events of `topic`.

    Tile t holds the events in ((t - 1) * tile_s, t * tile_s] since 1970; a sliding window is the `num_tiles` newest
    complete ones, a `tumbling` one the newest complete run of `num_tiles` whose last tile's number they divide. `key`
    names the fields of an event that make the entity's key. An event corrects a tile that ended up to `grace_s` before
    the newest event of its entity and partition. `tiles` is the same in history: one row per entity and tile with
    `events` and one column per measure (`windows.plan.Measure.name`), its event time the tile's end. `events` is the
    history that the tiles are made from by a backfill: one row per event, with the fields that `key` and `of` name.
    """

    topic: str
    key: tuple[str, ...]
    tile_s: int
    num_tiles: int
    grace_s: int
    aggregates: tuple[Aggregate, ...]
    tiles: ParquetSource
    tumbling: bool = False
    events: ParquetSource | None = None


class FeatureView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named, versioned group of features of one entity that are written together. Frozen once online.

    With a `window` the online value is computed from tiles; `source` is then the same window in history, row by row.
    """

    name: str
    version: int
    entity: str
    schema: tuple[Field, ...]
    source: ParquetSource
    ttl_s: float
    owner: str
    description: str = ""
    window: Window | None = None

    def __post_init__(self) -> None:
        names = [field.name for field in self.schema]
        if len(set(names)) != len(names) or not names:
            raise ConfigurationError(f"feature view {self.name}: the names of its schema must be distinct, got {names}")
        if self.ttl_s <= 0:
            raise ConfigurationError(f"feature view {self.name}: ttl_s must be positive, got {self.ttl_s}")
        if self.window is not None:
            self._check_window(self.window)

    def _check_window(self, window: Window) -> None:
        made = {aggregate.feature: aggregate for aggregate in window.aggregates}
        for field in self.schema:
            aggregate = made.pop(field.name, None)
            if aggregate is None:
                raise ConfigurationError(f"feature view {self.name}: no aggregate of its window makes {field.name!r}")
            is_count = aggregate.kind is AggregateKind.COUNT
            if field.type is not (FeatureType.INT64 if is_count else FeatureType.FLOAT64) or is_count != (
                not aggregate.of
            ):
                raise ConfigurationError(
                    f"feature view {self.name}: {field.name!r} must be an int64 count, or a float64 sum or mean"
                )
        if made:
            raise ConfigurationError(f"feature view {self.name}: its schema lacks {sorted(made)} of its window")
        if min(window.tile_s, window.num_tiles, len(window.key)) < 1 or window.grace_s < 0:
            raise ConfigurationError(
                f"feature view {self.name}: a window needs tile_s and num_tiles of at least 1, a key and grace_s >= 0"
            )

    def field(self, name: str) -> Field:
        for field in self.schema:
            if field.name == name:
                return field
        raise ConfigurationError(
            f"feature view {self.name} has no feature {name!r}; it has {[f.name for f in self.schema]}"
        )


class StoredRow(msgspec.Struct, frozen=True, kw_only=True):
    """One write to the online store. `created_time` and `offset` make the sequence that settles equal event times."""

    key: str
    event_time: datetime
    created_time: datetime
    values: dict[str, Any]  # a name left out is served as its default; None is null
    offset: int = 0

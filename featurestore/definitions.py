"""Feature views as data: entity, typed schema, source, TTL, owner, version. Declared in Python, stored as JSON."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, Final

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


DECIMAL_DIGITS: Final = 38  # what Parquet's decimal128 holds


class Entity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What features are about. `join_keys` name the parts of its key, in the order of `contracts.entity_key`."""

    name: str
    join_keys: tuple[str, ...]
    owner: str
    description: str = ""


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One feature. Where a stored row leaves it out, `default` is served (state `default`), or else `null`.

    A list holds values of `type`, none of them null. With `refuse_nan` a NaN is an error where it is written or read
    from a source. A default is what JSON can carry: a list's is a list, a decimal's a string (JSON would round it),
    bytes are base64, a timestamp is RFC 3339 with an offset.
    """

    name: str
    type: FeatureType
    default: bool | int | float | str | tuple[bool | int | float | str, ...] | None = None
    is_list: bool = False
    decimal_places: int = 0
    refuse_nan: bool = False

    def __post_init__(self) -> None:
        is_decimal = self.type is FeatureType.DECIMAL
        if not 0 <= self.decimal_places <= (DECIMAL_DIGITS if is_decimal else 0):
            raise ConfigurationError(
                f"field {self.name!r} of type {self.type}: decimal_places is for decimals, 0 to {DECIMAL_DIGITS},"
                f" got {self.decimal_places}"
            )
        if self.refuse_nan and self.type is not FeatureType.FLOAT64:
            raise ConfigurationError(f"field {self.name!r} of type {self.type}: only float64 has NaN to refuse")


class ParquetSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """History in Parquet: one row per entity and event, with the instant it was about and the instant it was known.

    `path` is a file or a folder of files. A declared field is a column of every file, or of none where it has a
    default. Columns that nobody declared are passed over, because views may share a file; `refuse_extra` makes one an
    error.
    """

    path: str
    key_column: str = "entity_key"
    event_time_column: str = "event_time"
    created_time_column: str = "created_time"
    refuse_extra: bool = False


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
    `events` and one column per content (`windows.tile.Content.name`), its event time the tile's end. `events` is the
    history that the tiles are made from by a backfill: one row per event, with the fields that `key` and `of` name, and
    its coordinates in `source` and `offset` where they are known.
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
            from featurestore.windows.soundness import check_window  # it knows this module

            check_window(self, self.window)

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

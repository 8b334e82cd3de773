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


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One feature. Where a stored row leaves it out, `default` is served (state `default`), or else `null`."""

    name: str
    type: FeatureType
    default: bool | int | float | str | None = None


class ParquetSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """History in Parquet: one row per entity and event, with the instant it was about and the instant it was known."""

    path: str
    key_column: str = "entity_key"
    event_time_column: str = "event_time"
    created_time_column: str = "created_time"


class FeatureView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named, versioned group of features of one entity that are written together. Frozen once online."""

    name: str
    version: int
    entity: str
    schema: tuple[Field, ...]
    source: ParquetSource
    ttl_s: float
    owner: str
    description: str = ""

    def __post_init__(self) -> None:
        names = [field.name for field in self.schema]
        if len(set(names)) != len(names) or not names:
            raise ConfigurationError(f"feature view {self.name}: the names of its schema must be distinct, got {names}")
        if self.ttl_s <= 0:
            raise ConfigurationError(f"feature view {self.name}: ttl_s must be positive, got {self.ttl_s}")

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

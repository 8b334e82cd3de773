"""What a read of the online store gives, from Redis or from this process's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from core_engine.contracts import ReadCost
from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.windows.plan import StoredWindow

Read: TypeAlias = tuple[FeatureView, str]  # a view and the key of an entity


class StoredPayload(NamedTuple):
    """What a hash holds: the event time in microseconds since 1970, and the row's payload (`codec`)."""

    event_us: int
    payload: bytes


Stored: TypeAlias = StoredPayload | StoredWindow | UnreadablePayload | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """One row per read, in their order, and what they cost."""

    rows: list[Stored]
    cost: ReadCost

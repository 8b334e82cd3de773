"""Windows by brute force: a list of events, judged one by one as the definition says; and a view to try it on."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from featurestore.definitions import (
    Aggregate,
    AggregateKind,
    FeatureType,
    FeatureView,
    Field,
    ParquetSource,
    Window,
)
from featurestore.instants import from_us
from featurestore.windows.batches import WindowEvent
from featurestore.windows.plan import WindowPlan
from featurestore.windows.state import Applied

TILE_S, NUM_TILES, GRACE_S, TTL_S = 10, 3, 20, 30.0
ORIGIN = datetime.fromisoformat("2026-11-30T12:00:00+00:00")
_numbers = itertools.count()


def window_view(tiles_path: str = "none", **changes: object) -> FeatureView:
    """Mean, share, sum and count over three tiles of ten seconds, grace two of them, TTL three."""
    name = f"window_{os.getpid()}_{next(_numbers)}"
    aggregates = (
        Aggregate(feature="mean_delay", kind=AggregateKind.MEAN, of="delay"),
        Aggregate(feature="late_share", kind=AggregateKind.MEAN, of="delay", at_least=15),
        Aggregate(feature="flights", kind=AggregateKind.COUNT),
        Aggregate(feature="total", kind=AggregateKind.SUM, of="delay"),
    )
    window = Window(
        topic="departures",
        key=("origin",),
        tile_s=TILE_S,
        num_tiles=NUM_TILES,
        grace_s=GRACE_S,
        aggregates=aggregates,
        tiles=ParquetSource(path=tiles_path),
    )
    declared = {
        "name": name,
        "version": 1,
        "entity": "airport",
        "schema": tuple(
            Field(name=a.feature, type=FeatureType.INT64 if a.of is None else FeatureType.FLOAT64) for a in aggregates
        ),
        "source": ParquetSource(path="none"),
        "ttl_s": TTL_S,
        "owner": "tests",
        "window": window,
    }
    return FeatureView(**{**declared, **changes})  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return ORIGIN + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Departure:
    """An event as a test writes it: when, how late, and where it stands in which log, which says by which plane."""

    seconds: float
    delay: float
    offset: int
    source: str = "departures/0"
    origin: str = "JFK"

    @property
    def plane(self) -> str:
        return f"N{self.offset % 7}"

    @property
    def coordinates(self) -> tuple[str, int]:
        return self.source, self.offset

    def to(self, plan: WindowPlan) -> WindowEvent:
        fields = {"origin": self.origin, "delay": self.delay, "plane": self.plane}
        return WindowEvent(
            plan.view.name, plan.key_of(fields), at(self.seconds), plan.amounts(fields), self.source, self.offset
        )


def tile_end_s(seconds: float) -> float:
    """The end of the tile (end - TILE_S, end] that holds this second."""
    return -(-seconds // TILE_S) * TILE_S


@dataclass
class Oracle:
    """One entity. `applied` is every departure that counts, `seen` how far each source has come."""

    applied: list[Departure] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    newest_s: float | None = None
    kept_s: float = TILE_S * (NUM_TILES + TTL_S // TILE_S + GRACE_S // TILE_S)

    def apply(self, event: Departure) -> Applied:
        end = tile_end_s(event.seconds)
        if self.newest_s is not None and end <= self.newest_s - self.kept_s:
            return Applied.EXPIRED
        if any(held.coordinates == event.coordinates and tile_end_s(held.seconds) == end for held in self.applied):
            return Applied.DUPLICATE
        if event.source in self.seen and end + GRACE_S < self.seen[event.source]:
            return Applied.LATE
        self.applied.append(event)
        self.seen[event.source] = max(event.seconds, self.seen.get(event.source, event.seconds))
        self.newest_s = end if self.newest_s is None else max(end, self.newest_s)
        return Applied.APPLIED

    def value(self, now_s: float, complete_s: float) -> tuple[float, list[float | None]]:
        """The tick that is served at `now_s`, and the four values there."""
        tick = min(now_s, complete_s) // TILE_S * TILE_S
        return tick, values_of(e for e in self.applied if tick - NUM_TILES * TILE_S < e.seconds <= tick)


def values_of(events: Iterable[Departure]) -> list[float | None]:
    delays = [event.delay for event in events]
    late = sum(delay >= 15 for delay in delays)
    if not delays:
        return [None, None, 0, 0.0]
    return [sum(delays) / len(delays), late / len(delays), len(delays), float(sum(delays))]


def seconds_of(event_us: int) -> float:
    return (from_us(event_us) - ORIGIN).total_seconds()

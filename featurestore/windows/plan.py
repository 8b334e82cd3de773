"""What a window is, as arithmetic: events to tiles, tiles to one row at an instant. Pure.

One definition for history and stream. At an instant the value is that of the newest tick up to which everything has
been applied, which is what the row of the batch view at that tick says: the same tiles, the same numbers, to the last
bit. The open tile is not part of it, so that a model is served what it was trained on.

Measures are whole millionths, so that a sum does not depend on the order of its events and none is counted half.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from core_engine.contracts import entity_key
from core_engine.errors import InvalidRequest
from featurestore.definitions import AggregateKind, FeatureType, FeatureView, Field
from featurestore.instants import duration_us

MILLION: Final = 1_000_000
LARGEST: Final = 1e9  # of one measure of one event; nine thousand such fill an int64 of millionths
EVENTS: Final = "events"


@dataclass(frozen=True, slots=True)
class Measure:
    """What is summed of an event: its field `of`, or whether that reaches `at_least`."""

    of: str
    at_least: float | None

    @property
    def name(self) -> str:
        """The column of its sums in the history of tiles."""
        return self.of if self.at_least is None else f"{self.of}>={self.at_least:g}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums over the events of one tile; `sums` in millionths, one per measure."""

    events: int
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """What the store holds of one entity: its tiles by index, the newest it was given, and the instant up to which all
    is applied."""

    tiles: Mapping[int, Tile]
    newest: int
    complete_us: int | None
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WindowRow:
    """The window at a tick; `values` in the order of the view's schema."""

    event_us: int
    values: list[Any]


class WindowPlan:
    """A view's window, compiled. Tile t ends at t * tile_us and holds its end, not its beginning."""

    def __init__(self, view: FeatureView) -> None:
        window = view.window
        assert window is not None
        self.view = view
        self.window = window
        self.tile_us = window.tile_s * MILLION
        self.grace_us = window.grace_s * MILLION
        made = {aggregate.feature: aggregate for aggregate in window.aggregates}
        self._aggregates = [made[field.name] for field in view.schema]
        wanted = (Measure(a.of, a.at_least) for a in self._aggregates if a.of is not None)
        self.measures = tuple(dict.fromkeys(wanted))
        ttl_tiles, grace_tiles = (-(-us // self.tile_us) for us in (duration_us(view.ttl_s), self.grace_us))
        # Kept behind the newest tile: all that a window may cover while it is not stale, or that may be corrected.
        self.kept_tiles = window.num_tiles + ttl_tiles + grace_tiles

    def tile_of(self, event_us: int) -> int:
        return -(-event_us // self.tile_us)

    def tick_of(self, instant_us: int) -> int:
        """The newest tile that is complete at `instant_us`."""
        return instant_us // self.tile_us

    def key_of(self, fields: Mapping[str, Any]) -> str:
        """The entity that an event belongs to. Raises `InvalidRequest`."""
        parts = [fields.get(name) for name in self.window.key]
        for name, part in zip(self.window.key, parts, strict=True):
            if not isinstance(part, str | int) or isinstance(part, bool) or part == "":
                self._refuse(name, part, f"a value: it is part of the key of entity {self.view.entity}")
        return entity_key(*(str(part) for part in parts))

    def amounts(self, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """What an event adds to each measure, in millionths. Raises `InvalidRequest`."""
        return tuple(self._amount(measure, fields.get(measure.of)) for measure in self.measures)

    def _amount(self, measure: Measure, value: Any) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or abs(value) > LARGEST:
            self._refuse(measure.of, value, f"a number between -{LARGEST:g} and {LARGEST:g}")
        if measure.at_least is not None:
            return MILLION if value >= measure.at_least else 0
        return round(float(value) * MILLION) if isinstance(value, float) else int(value) * MILLION

    def _refuse(self, name: str, value: object, expected: str) -> NoReturn:
        raise InvalidRequest(
            f"event field {name!r} = {reprlib.repr(value)} for feature view {self.view.name}: expected {expected}",
            field=name, value=value, expected=expected,
        )  # fmt: skip

    def row_at(self, stored: StoredWindow, now_us: int) -> WindowRow | None:
        """The window as known at `now_us`; None where nothing tells up to when events were applied.

        An entity without events in the window has a count of 0, sums of 0 and no means. Where what the window covers is
        no longer kept (the stream is far behind on one partition), every value is null; the row is stale by then.
        """
        if stored.complete_us is None:
            return None
        tick = self.tick_of(min(now_us, stored.complete_us))
        first = tick - self.window.num_tiles + 1
        if first <= stored.newest - self.kept_tiles:
            return WindowRow(tick * self.tile_us, [None] * len(self._aggregates))
        covered = [tile for index, tile in stored.tiles.items() if first <= index <= tick]
        events = sum(tile.events for tile in covered)
        sums = [sum(tile.sums[i] for tile in covered) for i in range(len(self.measures))]
        return WindowRow(tick * self.tile_us, [self._value(i, events, sums) for i in range(len(self._aggregates))])

    def _value(self, position: int, events: int, sums: list[int]) -> int | float | None:
        aggregate = self._aggregates[position]
        if aggregate.of is None:
            return events
        total = sums[self.measures.index(Measure(aggregate.of, aggregate.at_least))] / MILLION
        if aggregate.kind is AggregateKind.SUM:
            return total
        return total / events if events else None


def tile_view(plan: WindowPlan) -> FeatureView:
    """The history of the tiles as a view of its own, so that it is read and checked like every other source."""
    sums = (Field(name=measure.name, type=FeatureType.FLOAT64) for measure in plan.measures)
    return FeatureView(
        name=plan.view.name,
        version=plan.view.version,
        entity=plan.view.entity,
        schema=(Field(name=EVENTS, type=FeatureType.INT64), *sums),
        source=plan.window.tiles,
        ttl_s=plan.view.ttl_s,
        owner=plan.view.owner,
    )

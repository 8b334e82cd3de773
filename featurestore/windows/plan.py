"""What a window is, as arithmetic: events to tiles, tiles to one row at an instant. Pure.

One definition for history and stream. At an instant the value is that of the newest tick up to which everything has
been applied, which is what the row of the batch view at that tick says: the same tiles, the same numbers, to the last
bit. The open tile is not part of it, so that a model is served what it was trained on.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeAlias

from core_engine.contracts import entity_key
from core_engine.errors import InvalidRequest
from featurestore.definitions import Aggregate, AggregateKind, FeatureView
from featurestore.instants import duration_us
from featurestore.windows.layout import Layout
from featurestore.windows.sketches import text_of
from featurestore.windows.tile import MILLION, NEEDED, Content, Holds, Measure, Tile, combined, value_of

LARGEST: Final = 1e9  # of one measure of one event: its millionths are exact in a double

Amount: TypeAlias = int | str  # millionths of a measure's number, or its text


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
    """A view's window, compiled. Tile t ends at t * tile_us and holds its end, not its beginning.

    `measures` are what is taken of each event, `contents` what is kept of them in a tile.
    """

    def __init__(self, view: FeatureView) -> None:
        window = view.window
        assert window is not None
        self.view = view
        self.window = window
        self.tile_us = window.tile_s * MILLION
        self.grace_us = window.grace_s * MILLION
        self.kept_tiles = kept_tiles(view)
        made = {aggregate.feature: aggregate for aggregate in window.aggregates}
        self._aggregates = [made[field.name] for field in view.schema]
        self.contents = tuple(_contents(self._aggregates))
        self.measures = tuple(dict.fromkeys(content.measure for content in self.contents))
        self.layout = Layout(self.contents, self.measures)
        place: dict[tuple[Measure | None, Holds], int] = {(c.measure, c.holds): i for i, c in enumerate(self.contents)}
        self._needed = [[place[measure_of(a), holds] for holds in NEEDED[a.kind]] for a in self._aggregates]

    def tile_of(self, event_us: int) -> int:
        return -(-event_us // self.tile_us)

    def tick_of(self, instant_us: int) -> int:
        """The newest tile that is complete at `instant_us`."""
        return instant_us // self.tile_us

    def last_tile(self, tick: int) -> int:
        """The last tile of the window that is served once `tick` is complete."""
        return tick // self.window.num_tiles * self.window.num_tiles if self.window.tumbling else tick

    def key_of(self, fields: Mapping[str, Any]) -> str:
        """The entity that an event belongs to. Raises `InvalidRequest`."""
        parts = [fields.get(name) for name in self.window.key]
        for name, part in zip(self.window.key, parts, strict=True):
            if not isinstance(part, str | int) or isinstance(part, bool) or part == "":
                self._refuse(name, part, f"a value: it is part of the key of entity {self.view.entity}")
        return entity_key(*(str(part) for part in parts))

    def amounts(self, fields: Mapping[str, Any]) -> tuple[Amount, ...]:
        """What each measure takes of an event: millionths, or the text. Raises `InvalidRequest`."""
        return tuple(self._amount(measure, fields.get(measure.of)) for measure in self.measures)

    def _amount(self, measure: Measure, value: Any) -> Amount:
        if measure.is_text and isinstance(value, str) and is_unicode(value):
            return value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST:  # NaN is not
            text = "a text, or " if measure.is_text else ""
            self._refuse(measure.of, value, f"{text}a number between -{LARGEST:g} and {LARGEST:g}")
        if measure.is_text:
            return text_of(value)
        if measure.at_least is not None:
            return MILLION if value >= measure.at_least else 0
        return round(value * MILLION) if isinstance(value, float) else value * MILLION

    def _refuse(self, name: str, value: object, expected: str) -> NoReturn:
        raise InvalidRequest(
            f"event field {name!r} = {reprlib.repr(value)} for feature view {self.view.name}: expected {expected}",
            field=name, value=value, expected=expected,
        )  # fmt: skip

    def row_at(self, stored: StoredWindow, now_us: int) -> WindowRow | None:
        """The window as known at `now_us`; None where nothing tells up to when events were applied.

        An entity without events in the window has counts and sums of 0, no newest events, and null for all else. Where
        what the window covers is no longer kept (the stream is far behind on one partition), every value is null; the
        row is stale by then.
        """
        if stored.complete_us is None:
            return None
        last = self.last_tile(self.tick_of(min(now_us, stored.complete_us)))
        first = last - self.window.num_tiles + 1
        if first <= stored.newest - self.kept_tiles:
            return WindowRow(last * self.tile_us, [None] * len(self._aggregates))
        covered = [tile for index, tile in stored.tiles.items() if first <= index <= last]
        return WindowRow(last * self.tile_us, self.values(combined(self.contents, covered)))

    def values(self, window: Tile) -> list[Any]:
        """The view's values, in the order of its schema, by all that its window holds."""
        return [
            value_of(aggregate, window.events, [window.contents[i] for i in needed])
            for aggregate, needed in zip(self._aggregates, self._needed, strict=True)
        ]


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can carry it
        return False
    return True


def kept_tiles(view: FeatureView) -> int:
    """How many tiles are kept behind the newest: all that a window may cover while it is not stale, or that may be
    corrected."""
    window = view.window
    assert window is not None
    ttl_tiles = -(-duration_us(view.ttl_s) // (window.tile_s * MILLION))
    return window.num_tiles + ttl_tiles + -(-window.grace_s // window.tile_s)


def measure_of(aggregate: Aggregate) -> Measure | None:
    """What an aggregate is made of; None for a count."""
    if aggregate.of is None:
        return None
    return Measure(aggregate.of, aggregate.at_least, aggregate.kind is AggregateKind.DISTINCT)


def _contents(aggregates: Iterable[Aggregate]) -> Iterable[Content]:
    """Each thing once, however many aggregates need it: of the newest as many as the one that wants most."""
    needed: dict[tuple[Measure, Holds], Content] = {}
    for aggregate in aggregates:
        measure = measure_of(aggregate)
        for holds in NEEDED[aggregate.kind] if measure is not None else ():
            assert measure is not None
            content = needed.setdefault((measure, holds), Content(measure, holds))
            needed[measure, holds] = replace(content, size=max(content.size, aggregate.size or 0))
    return needed.values()

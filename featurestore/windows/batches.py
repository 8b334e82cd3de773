"""Events on their way to the store: one call of a server-side function per entity, in the order in which they came.

Here is the last check of what Lua has to hold in doubles.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NoReturn

from core_engine.errors import InvalidRequest
from featurestore.instants import to_us
from featurestore.keys import applied_key, window_key
from featurestore.windows import sketches
from featurestore.windows.plan import Amount, WindowPlan
from featurestore.windows.tile import MILLION, Holds

MAX_EVENTS: Final = 256  # of one call: it holds the server for a millisecond, and Lua unpacks a few thousand values
MAX_FIELDS: Final = 1024  # of the tiles of one call
EXACT: Final = 1 << 53  # doubles hold every whole number up to here: of microseconds, until the year 2255


@dataclass(frozen=True, slots=True)
class WindowEvent:
    """One event for one windowed view. `source` ("topic/partition") and `offset` are its coordinates for ever."""

    view: str
    key: str
    event_time: datetime
    amounts: tuple[Amount, ...]  # `WindowPlan.amounts`
    source: str
    offset: int


@dataclass(slots=True)
class Batch:
    """Events of one entity. `positions` are their places in what was given; `tiles` and `sources` are numbered from 1,
    in order of first mention."""

    plan: WindowPlan
    key: str
    lifetime_ms: int
    positions: list[int] = field(default_factory=list)
    events: list[tuple[int, WindowEvent]] = field(default_factory=list)  # with the place of the tile
    tiles: dict[int, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.events) >= MAX_EVENTS or len(self.tiles) * self.plan.layout.num_fields >= MAX_FIELDS

    def add(self, position: int, event: WindowEvent) -> None:
        """Raises `InvalidRequest` for a time or coordinates that are none."""
        plan, view, offset = self.plan, event.view, event.offset
        event_us = to_us(event.event_time, f"{view}.event_time")
        if not -EXACT <= event_us <= EXACT:
            _refuse(view, "event_time", event.event_time, "an instant from 1685 to 2255")
        if type(offset) is not int or not 0 <= offset <= EXACT:
            _refuse(view, "offset", offset, "an integer from 0 to 2**53")
        if event.source not in self.sources:
            self._add_source(event)
        tile = self.tiles.setdefault(plan.tile_of(event_us), len(self.tiles) + 1)
        self.positions.append(position)
        self.events.append((tile, event))
        self.numbers += (tile, self.sources[event.source], offset, event_us)
        self.numbers += plan.layout.numbers(event.amounts)

    def _add_source(self, event: WindowEvent) -> None:
        if not isinstance(event.source, str) or not event.source or "\0" in event.source:
            _refuse(event.view, "source", event.source, "a topic and partition, without a zero byte")
        self.sources[event.source] = len(self.sources) + 1

    def call(self, function: str, *more: Any) -> tuple[Any, ...]:
        """The command; `more` are the arguments after those that all functions of events take."""
        plan = self.plan
        return (
            *("FCALL", function, 2, window_key(plan.view, self.key), applied_key(plan.view, self.key)),
            *(plan.tile_us, plan.grace_us, plan.kept_tiles, self.lifetime_ms, plan.layout.how, plan.layout.sizes),
            *(len(plan.layout.sketches), len(self.tiles), len(self.sources)),
            *(struct.pack(f"<{len(self.numbers)}d", *self.numbers), *self.tiles, *self.sources, *more),
        )

    def merged(self, is_applied: Sequence[bool], held: Sequence[bytes | None]) -> list[str | bytes]:
        """Name and bytes of every sketch that changes; `held` has those of each tile after the other, as in `peek`."""
        layout, changed = self.plan.layout, list[str | bytes]()
        for number, tile in self.tiles.items():
            new = [
                event for (at, event), applied in zip(self.events, is_applied, strict=True) if applied and at == tile
            ]
            for place, content in enumerate(layout.sketches) if new else ():
                amounts = [event.amounts[layout.measured[content]] for event in new]
                before = held[(tile - 1) * len(layout.sketches) + place]
                changed += (f"k:{number}:{place}", _sketched(self.plan.contents[content].holds, before, amounts))
        return changed


def _sketched(holds: Holds, before: bytes | None, amounts: Sequence[Any]) -> bytes:
    if holds is Holds.DISTINCT:
        return sketches.with_texts(before, amounts)
    return sketches.with_numbers(before, [amount / MILLION for amount in amounts])


def batched(events: Iterable[WindowEvent], opened: Callable[[str, str], Batch]) -> list[Batch]:
    """Batches of at most `MAX_EVENTS`; those of one entity in its events' order. `opened` makes an empty one for a view
    and a key.

    Raises:
        InvalidRequest: for an event whose key, time or coordinates are none; it names the view and the field.
    """
    batches: list[Batch] = []
    open_ones: dict[tuple[str, str], Batch] = {}
    for position, event in enumerate(events):
        batch = open_ones.get((event.view, event.key))
        if batch is None or batch.is_full:
            batch = open_ones[event.view, event.key] = opened(event.view, event.key)
            batches.append(batch)
        batch.add(position, event)
    return batches


def _refuse(view: str, name: str, value: object, expected: str) -> NoReturn:
    where = f"{view}.{name}"
    raise InvalidRequest(f"{where} = {value!r}: expected {expected}", field=where, value=value, expected=expected)

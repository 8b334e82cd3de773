"""How the contents of a tile lie in Redis: what an event adds to them, and a tile to fields of a hash and back.

A tile is one field of doubles of which each is a whole number (`t:<tile>`: the number of events, then sums and
extremes), one per list of the newest (`l:<tile>:<i>`) and one per sketch (`k:<tile>:<i>`). A sum lies in two doubles
and a sum of squares in four, `LIMB` bits each but for the first. Events add theirs without a carry, so that a sum is
exact up to 2**(53 - LIMB) events in one tile of one entity.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from featurestore.windows.tile import IS_SKETCH, Content, Holds, Measure, Newest, Tile

LIMB: Final = 26
MASK: Final = (1 << LIMB) - 1
HOW: Final = {Holds.SUM: "++", Holds.SQUARES: "++++", Holds.MIN: "<", Holds.MAX: ">"}
ENTRY: Final = struct.Struct("<ddd")  # of a list: event time, offset, amount; the source follows, ended by a zero byte


class Layout:
    """Which content of a tile lies where. `how` says how each double after the first of `t:` is added to, `sizes` how
    long each list may be."""

    def __init__(self, contents: Sequence[Content], measures: Sequence[Measure]) -> None:
        self._numbers = [(i, content.holds) for i, content in enumerate(contents) if content.holds in HOW]
        self._lists = [i for i, content in enumerate(contents) if content.holds is Holds.NEWEST]
        self.sketches = [i for i, content in enumerate(contents) if content.holds in IS_SKETCH]
        self.measured = [measures.index(content.measure) for content in contents]
        self.num_fields = 1 + len(self._lists) + len(self.sketches)
        self.how = "".join(HOW[holds] for _, holds in self._numbers)
        self.sizes = " ".join(str(contents[i].size) for i in self._lists)
        self._totals = struct.Struct(f"<{1 + len(self.how)}d")

    def numbers(self, amounts: Sequence[Any]) -> list[int]:
        """What an event adds to `t:`, and then its amount for each list."""
        numbers: list[int] = []
        for i, holds in self._numbers:
            amount = amounts[self.measured[i]]
            numbers += _split(amount * amount if holds is Holds.SQUARES else amount, len(HOW[holds]))
        for i in self._lists:
            numbers.append(amounts[self.measured[i]])
        return numbers

    def fields(self, number: int, tile: Tile) -> Iterator[tuple[str, bytes]]:
        """A tile as fields of the hash."""
        parts = (_split(tile.contents[i], len(HOW[holds])) for i, holds in self._numbers)
        yield f"t:{number}", self._totals.pack(tile.events, *(limb for part in parts for limb in part))
        for place, i in enumerate(self._lists):
            yield f"l:{number}:{place}", packed_list(tile.contents[i])
        for place, i in enumerate(self.sketches):
            yield f"k:{number}:{place}", tile.contents[i]

    def tile(self, name: bytes, held: Mapping[bytes, bytes]) -> Tile:
        """The tile of that name in the hash. Raises `KeyError`, `ValueError` or `struct.error` if it is not ours."""
        events, *limbs = map(int, self._totals.unpack(held[b"t:" + name]))
        contents: list[Any] = [None] * len(self.measured)
        at = 0
        for i, holds in self._numbers:
            contents[i] = _joined(limbs[at : at + len(HOW[holds])])
            at += len(HOW[holds])
        for place, i in enumerate(self._lists):
            contents[i] = unpacked_list(held[b"l:%b:%d" % (name, place)])
        for place, i in enumerate(self.sketches):
            contents[i] = held[b"k:%b:%d" % (name, place)]
        return Tile(events, tuple(contents))


def _split(value: int, width: int) -> Sequence[int]:
    if width == 1:
        return (value,)
    if width == 2:
        return (value >> LIMB, value & MASK)
    return (*_split(value >> (2 * LIMB), width - 2), (value >> LIMB) & MASK, value & MASK)


def _joined(limbs: Sequence[int]) -> int:
    value = 0
    for limb in limbs:
        value = (value << LIMB) + limb
    return value


def packed_list(entries: Sequence[Newest]) -> bytes:
    return b"".join(ENTRY.pack(e.event_us, e.offset, e.amount) + e.source.encode() + b"\0" for e in entries)


def unpacked_list(held: bytes) -> tuple[Newest, ...]:
    """Raises `ValueError` or `struct.error` for bytes that are no list."""
    entries, at = [], 0
    while at < len(held):
        event_us, offset, amount = map(int, ENTRY.unpack_from(held, at))
        end = held.index(b"\0", at + ENTRY.size)
        entries.append(Newest(event_us, held[at + ENTRY.size : end].decode(), offset, amount))
        at = end + 1
    return tuple(entries)

"""What tiles come to together: the same, however events were cut into tiles, and exact where doubles would not be."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from featurestore.windows.layout import Layout
from featurestore.windows.plan import LARGEST, WindowPlan
from featurestore.windows.tile import MILLION, Newest, Tile, combined
from tests.featurestore.rows import PROPERTY
from tests.featurestore.windows.kinds import DEPARTURES, EXACT, brute, kinds_view, once_each
from tests.featurestore.windows.oracle import Departure

PLAN = WindowPlan(kinds_view(EXACT))
HUGE = st.integers(-int(LARGEST) * MILLION, int(LARGEST) * MILLION)


def tile_of(event: Departure) -> Tile:
    """A tile with one event."""
    made = event.to(PLAN)
    us = round(made.event_time.timestamp() * 1e6)
    contents: list[Any] = []
    for content in PLAN.contents:
        amount = made.amounts[PLAN.measures.index(content.measure)]
        assert isinstance(amount, int)
        of_kind = {"squares": amount**2, "newest": (Newest(us, event.source, event.offset, amount),)}
        contents.append(of_kind.get(content.holds, amount))
    return Tile(1, tuple(contents))


@PROPERTY
@given(st.lists(DEPARTURES, max_size=30).map(once_each), st.integers(1, 5))
def test_any_cut_into_tiles_comes_to_the_definition(events: list[Departure], num_parts: int) -> None:
    events = list(dict.fromkeys(events))
    parts = [combined(PLAN.contents, [tile_of(e) for e in events[i::num_parts]]) for i in range(num_parts)]
    held = [part for part in parts if part.events]
    assert PLAN.values(combined(PLAN.contents, held)) == brute(events, EXACT)


@PROPERTY
@given(st.lists(HUGE, min_size=1, max_size=20))
def test_sums_and_squares_of_the_largest_amounts_are_exact_in_the_store(amounts: list[int]) -> None:
    """What events add to a tile's doubles, added as the server adds, comes to Python's own integers."""
    layout = Layout(PLAN.contents, PLAN.measures)
    events = [layout.numbers([amount] * len(PLAN.measures)) for amount in amounts]
    adding: dict[str, Callable[[list[float]], float]] = {"+": sum, "<": min, ">": max}
    added = [adding[how]([float(event[i]) for event in events]) for i, how in enumerate(layout.how)]
    lists = {f"l:7:{i}".encode(): b"" for i in range(2)}
    packed = layout._totals.pack(len(amounts), *added)
    tile = layout.tile(b"7", {b"t:7": packed, **lists})
    exact = {"sum": sum(amounts), "squares": sum(a * a for a in amounts), "min": min(amounts), "max": max(amounts)}
    for content, value in zip(PLAN.contents, tile.contents, strict=True):
        assert value == exact.get(content.holds, ())
    spread = dict(zip((a.feature for a in EXACT), PLAN.values(tile), strict=True))["spread"]
    variance = statistics.pvariance(map(Fraction, amounts))
    assert abs(Fraction(spread) ** 2 * MILLION**2 - variance) <= variance * Fraction(1, 10**12)


@PROPERTY
@given(st.lists(DEPARTURES, min_size=1, max_size=10).map(once_each), st.integers(-(10**9), 10**9))
def test_a_tile_survives_its_fields(events: list[Departure], number: int) -> None:
    tile = combined(PLAN.contents, [tile_of(event) for event in dict.fromkeys(events)])
    fields = {name.encode(): value for name, value in PLAN.layout.fields(number, tile)}
    assert PLAN.layout.tile(str(number).encode(), fields) == tile

"""The arithmetic of windows: which declarations hang together, which events fit, which tile holds an instant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import InvalidRequest
from featurestore.definitions import Aggregate, AggregateKind, FeatureView
from featurestore.windows.known_tiles import tile_view
from featurestore.windows.plan import StoredWindow, WindowPlan
from featurestore.windows.tile import MILLION, Tile
from tests.featurestore.rows import PROPERTY
from tests.featurestore.windows.kinds import AGGREGATES, kinds_view
from tests.featurestore.windows.oracle import TILE_S, window_view

PLAN = WindowPlan(window_view())
TILE_US = TILE_S * MILLION


@PROPERTY
@given(st.integers(-(10**15), 10**15))
def test_every_instant_is_in_one_tile_which_ends_at_or_after_it(us: int) -> None:
    tile = PLAN.tile_of(us)
    assert (tile - 1) * TILE_US < us <= tile * TILE_US
    assert PLAN.tick_of(us) * TILE_US <= us < (PLAN.tick_of(us) + 1) * TILE_US


def test_measures_are_distinct_and_named() -> None:
    assert [measure.name for measure in PLAN.measures] == ["delay", "delay>=15"]
    assert [field.name for field in tile_view(PLAN).schema] == ["events", "delay", "delay>=15"]


@pytest.mark.parametrize(
    ("delay", "amounts"),
    [(0, (0, 0)), (14.999999, (14_999_999, 0)), (15, (15_000_000, MILLION)), (-3.5, (-3_500_000, 0)), (1e-7, (0, 0))],
)
def test_amounts_are_whole_millionths(delay: float, amounts: tuple[int, ...]) -> None:
    assert PLAN.amounts({"delay": delay}) == amounts


@pytest.mark.parametrize("delay", [None, "5", True, float("nan"), float("inf"), 1e10, 10**400, [1]])
def test_a_field_that_is_no_number_is_refused_by_name(delay: Any) -> None:
    with pytest.raises(InvalidRequest, match="event field 'delay'") as refused:
        PLAN.amounts({"delay": delay})
    assert refused.value.field == "delay"


@pytest.mark.parametrize("origin", [None, "", 1.5, True, []])
def test_a_key_that_is_none_is_refused(origin: Any) -> None:
    with pytest.raises(InvalidRequest, match="part of the key of entity airport"):
        PLAN.key_of({"origin": origin})


def test_nothing_is_said_of_a_stream_that_nobody_followed() -> None:
    assert PLAN.row_at(StoredWindow({1: Tile(1, (5, 0))}, 1, None), 10**9) is None


def test_what_is_no_longer_kept_is_null_not_a_wrong_number() -> None:
    tiles = {100: Tile(1, (5 * MILLION, 0))}
    tick = 100 - PLAN.kept_tiles + PLAN.window.num_tiles
    oldest = PLAN.row_at(StoredWindow(tiles, 100, tick * TILE_US), 10**12)
    older = PLAN.row_at(StoredWindow(tiles, 100, (tick - 1) * TILE_US), 10**12)
    assert oldest is not None
    assert older is not None
    assert oldest.values == [None, None, 0, 0.0]
    assert older.values == [None, None, None, None]


@PROPERTY
@given(st.integers(-(10**12), 10**12), st.integers(1, 30))
def test_a_tumbling_window_ends_with_the_last_tile_that_its_length_divides(tick: int, num_tiles: int) -> None:
    plan = WindowPlan(kinds_view(num_tiles=num_tiles, tumbling=True))
    last = plan.last_tile(tick)
    assert last <= tick < last + num_tiles
    assert last % num_tiles == 0
    assert WindowPlan(kinds_view(num_tiles=num_tiles)).last_tile(tick) == tick


def test_an_empty_window_has_counts_and_sums_of_0_no_newest_and_null_for_all_else() -> None:
    plan = WindowPlan(kinds_view())
    row = plan.row_at(StoredWindow({}, 100, 100 * plan.tile_us), 10**12)
    assert row is not None
    found = dict(zip((aggregate.feature for aggregate in AGGREGATES), row.values, strict=True))
    assert {name: value for name, value in found.items() if value is not None} == {
        "flights": 0, "total": 0.0, "newest": [], "newest_late": [], "planes": 0,
    }  # fmt: skip


def test_what_several_aggregates_need_is_kept_once() -> None:
    names = [content.name for content in WindowPlan(kinds_view()).contents]
    assert names == [
        *("delay", "delay>=15", "delay:min", "delay:max", "delay:squares"),
        *("delay:newest", "delay>=15:newest", "plane:distinct", "delay:quantiles"),
    ]
    window = window_view().window
    assert window is not None
    two = (*window.aggregates, Aggregate(feature="a", kind=AggregateKind.LAST, of="delay", size=2))
    three = (*two, Aggregate(feature="b", kind=AggregateKind.LAST, of="delay", size=7))
    sizes = [content.size for content in WindowPlan(kinds_view(three)).contents]
    assert sizes == [0, 0, 7], "as many of the newest as the one that wants most"


@pytest.mark.parametrize(("plane", "text"), [("N1", "N1"), ("", ""), (5, "5"), (5.0, "5"), (0.5, "0.5")])
def test_distinct_takes_texts_and_numbers_by_their_text(plane: Any, text: str) -> None:
    plan = WindowPlan(kinds_view())
    assert plan.amounts({"delay": 1, "plane": plane})[2] == text


@pytest.mark.parametrize("plane", [None, True, float("nan"), ["N1"], {}, "half a pair \ud800"])
def test_distinct_refuses_what_is_neither(plane: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"event field 'plane' = .*: expected a text, or a number"):
        WindowPlan(kinds_view()).amounts({"delay": 1, "plane": plane})


def test_a_declaration_survives_its_json() -> None:
    view = window_view()
    assert msgspec.json.decode(msgspec.json.encode(view), type=FeatureView) == view

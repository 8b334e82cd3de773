"""The arithmetic of windows: which declarations hang together, which events fit, which tile holds an instant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.definitions import Aggregate, AggregateKind, FeatureView
from featurestore.windows.plan import MILLION, StoredWindow, Tile, WindowPlan, tile_view
from tests.featurestore.rows import PROPERTY
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


@pytest.mark.parametrize("delay", [None, "5", True, float("nan"), float("inf"), 1e10, [1]])
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


def changed(**changes: Any) -> FeatureView:
    view = window_view()
    assert view.window is not None
    return msgspec.structs.replace(view, window=msgspec.structs.replace(view.window, **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"aggregates": ()}, "no aggregate of its window makes 'mean_delay'"),
        ({"tile_s": 0}, "tile_s and num_tiles of at least 1"),
        ({"num_tiles": 0}, "tile_s and num_tiles of at least 1"),
        ({"key": ()}, "a key"),
        ({"grace_s": -1}, "grace_s >= 0"),
    ],
)
def test_a_window_that_does_not_hang_together_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        changed(**changes)


def test_an_aggregate_without_a_feature_or_of_another_type_is_refused() -> None:
    window = window_view().window
    assert window is not None
    more = (*window.aggregates, Aggregate(feature="lost", kind=AggregateKind.COUNT))
    with pytest.raises(ConfigurationError, match=r"its schema lacks \['lost'\]"):
        changed(aggregates=more)
    counted = tuple(
        Aggregate(feature=a.feature, kind=AggregateKind.COUNT) if a.feature == "mean_delay" else a
        for a in window.aggregates
    )
    with pytest.raises(ConfigurationError, match="'mean_delay' must be an int64 count"):
        changed(aggregates=counted)


def test_a_declaration_survives_its_json() -> None:
    view = window_view()
    assert msgspec.json.decode(msgspec.json.encode(view), type=FeatureView) == view

"""Whether a window hangs together: checked once, when its view is declared."""

from __future__ import annotations

import math
from typing import Final, NoReturn

from core_engine.errors import ConfigurationError
from featurestore.definitions import Aggregate, AggregateKind, FeatureType, FeatureView, Field, Window
from featurestore.windows.plan import kept_tiles

MAX_NEWEST: Final = 100  # of `last`: a tile holds so many events as they are
MAX_TILES: Final = 10_000  # a read takes all that are kept


def check_window(view: FeatureView, window: Window) -> None:
    """Raises `ConfigurationError`, naming view and feature or dial, for a window that could not be computed."""
    _check_dials(view, window)
    made = {aggregate.feature: aggregate for aggregate in window.aggregates}
    if len(made) < len(window.aggregates):
        _refuse(view, f"two aggregates of its window make one feature: {[a.feature for a in window.aggregates]}")
    for field in view.schema:
        aggregate = made.pop(field.name, None)
        if aggregate is None:
            _refuse(view, f"no aggregate of its window makes {field.name!r}")
        _check_type(view, field, aggregate)
        _check_aggregate(view, aggregate)
    if made:
        _refuse(view, f"its schema lacks {sorted(made)} of its window")


def _check_dials(view: FeatureView, window: Window) -> None:
    if min(window.tile_s, window.num_tiles, len(window.key)) < 1 or window.grace_s < 0:
        _refuse(view, "a window needs tile_s and num_tiles of at least 1, a key and grace_s >= 0")
    if math.isfinite(view.ttl_s) and kept_tiles(view) > MAX_TILES:
        _refuse(
            view,
            f"its window, ttl_s and grace_s span {kept_tiles(view)} tiles of {window.tile_s} s, of which every read"
            f" takes all: at most {MAX_TILES}; make the tiles longer",
        )


def _check_type(view: FeatureView, field: Field, aggregate: Aggregate) -> None:
    is_whole = aggregate.kind in {AggregateKind.COUNT, AggregateKind.DISTINCT}
    expected = FeatureType.INT64 if is_whole else FeatureType.FLOAT64
    is_list = aggregate.kind is AggregateKind.LAST
    if field.type is not expected or field.is_list != is_list:
        found = f"a list of {field.type}" if field.is_list else field.type
        wanted = f"a list of {expected}" if is_list else expected
        _refuse(view, f"{field.name!r} is {found}, but a {aggregate.kind} is {wanted}")


def _check_aggregate(view: FeatureView, aggregate: Aggregate) -> None:
    kind, name = aggregate.kind, f"{aggregate.feature!r}, a {aggregate.kind}"
    if (kind is AggregateKind.COUNT) is bool(aggregate.of):
        _refuse(view, f"{name}, must name a field as `of`" if not aggregate.of else f"{name}, takes no field `of`")
    if aggregate.at_least is not None and (
        kind in {AggregateKind.COUNT, AggregateKind.DISTINCT} or not math.isfinite(aggregate.at_least)
    ):
        _refuse(view, f"{name}, cannot be `at_least` {aggregate.at_least}: a finite number, of a number only")
    if kind is AggregateKind.LAST:
        if aggregate.size is None or not 1 <= aggregate.size <= MAX_NEWEST:
            _refuse(view, f"{name}, needs a `size` from 1 to {MAX_NEWEST}, got {aggregate.size}")
    elif aggregate.size is not None:
        _refuse(view, f"{name}, takes no `size`")
    if kind is AggregateKind.QUANTILE:
        if aggregate.quantile is None or not 0 <= aggregate.quantile <= 1:
            _refuse(view, f"{name}, needs a `quantile` from 0 to 1, got {aggregate.quantile}")
    elif aggregate.quantile is not None:
        _refuse(view, f"{name}, takes no `quantile`")


def _refuse(view: FeatureView, what: str) -> NoReturn:
    raise ConfigurationError(f"feature view {view.name}: {what}")

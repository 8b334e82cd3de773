"""Which windows are refused when they are declared, and that the refusal names the view, the feature and the dial."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from core_engine.errors import ConfigurationError
from featurestore.definitions import Aggregate, AggregateKind, FeatureType, FeatureView, Field
from featurestore.windows.soundness import MAX_NEWEST, MAX_TILES
from tests.featurestore.windows.kinds import AGGREGATES, kinds_view, schema_of
from tests.featurestore.windows.oracle import window_view

K = AggregateKind


def changed(**changes: Any) -> FeatureView:
    view = window_view()
    assert view.window is not None
    return msgspec.structs.replace(view, window=msgspec.structs.replace(view.window, **changes))


def of_one(aggregate: Aggregate, field: Field | None = None) -> FeatureView:
    """A view of that aggregate alone, its field of the right type unless one is given."""
    view = kinds_view()
    assert view.window is not None
    window = msgspec.structs.replace(view.window, aggregates=(aggregate,))
    return msgspec.structs.replace(view, window=window, schema=(field or schema_of([aggregate])[0],))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"aggregates": ()}, "no aggregate of its window makes 'mean_delay'"),
        ({"tile_s": 0}, "tile_s and num_tiles of at least 1"),
        ({"num_tiles": 0}, "tile_s and num_tiles of at least 1"),
        ({"key": ()}, "a key"),
        ({"grace_s": -1}, "grace_s >= 0"),
        ({"num_tiles": MAX_TILES}, f"of which every read takes all: at most {MAX_TILES}"),
        ({"grace_s": 10**6}, "make the tiles longer"),
    ],
)
def test_a_window_whose_dials_make_none_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"feature view window_.*{says}"):
        changed(**changes)


def test_features_and_aggregates_must_be_the_same() -> None:
    window = window_view().window
    assert window is not None
    lost = Aggregate(feature="lost", kind=K.COUNT)
    with pytest.raises(ConfigurationError, match=r"its schema lacks \['lost'\]"):
        changed(aggregates=(*window.aggregates, lost))
    with pytest.raises(ConfigurationError, match="two aggregates of its window make one feature"):
        changed(aggregates=(*window.aggregates, window.aggregates[0]))


def test_every_kind_is_sound_as_it_should_be_declared() -> None:
    for aggregate in AGGREGATES:
        of_one(aggregate)


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda aggregate: aggregate.feature)
def test_a_feature_of_another_type_is_refused(aggregate: Aggregate) -> None:
    right = schema_of([aggregate])[0]
    other = FeatureType.INT64 if right.type is FeatureType.FLOAT64 else FeatureType.FLOAT64
    for wrong in (
        msgspec.structs.replace(right, type=other),
        msgspec.structs.replace(right, is_list=not right.is_list),
        Field(name=aggregate.feature, type=FeatureType.STRING),
    ):
        with pytest.raises(ConfigurationError, match=f"'{aggregate.feature}' is .*but a {aggregate.kind} is"):
            of_one(aggregate, wrong)


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"kind": K.COUNT, "of": "delay"}, "takes no field `of`"),
        ({"kind": K.SUM}, "must name a field as `of`"),
        ({"kind": K.DISTINCT, "of": ""}, "must name a field as `of`"),
        ({"kind": K.COUNT, "at_least": 1.0}, "cannot be `at_least` 1.0"),
        ({"kind": K.DISTINCT, "of": "plane", "at_least": 1.0}, "cannot be `at_least` 1.0"),
        ({"kind": K.MEAN, "of": "delay", "at_least": float("nan")}, "cannot be `at_least` nan"),
        ({"kind": K.LAST, "of": "delay"}, f"needs a `size` from 1 to {MAX_NEWEST}, got None"),
        ({"kind": K.LAST, "of": "delay", "size": 0}, "got 0"),
        ({"kind": K.LAST, "of": "delay", "size": MAX_NEWEST + 1}, f"got {MAX_NEWEST + 1}"),
        ({"kind": K.MAX, "of": "delay", "size": 1}, "takes no `size`"),
        ({"kind": K.QUANTILE, "of": "delay"}, "needs a `quantile` from 0 to 1, got None"),
        ({"kind": K.QUANTILE, "of": "delay", "quantile": 95}, "got 95"),
        ({"kind": K.QUANTILE, "of": "delay", "quantile": float("nan")}, "got nan"),
        ({"kind": K.STDDEV, "of": "delay", "quantile": 0.5}, "takes no `quantile`"),
    ],
)
def test_an_aggregate_with_a_dial_too_many_too_few_or_out_of_range_is_refused(dials: dict[str, Any], says: str) -> None:
    where = f"feature view window_.*: 'x', a {dials['kind']}, "
    with pytest.raises(ConfigurationError, match=where + ".*" + re.escape(says)):
        of_one(Aggregate(feature="x", **dials))

from __future__ import annotations

import pytest

from core_engine.contracts import FeatureState, FeatureValue
from featurestore.catalog import ViewCatalog
from featurestore.codec import ABSENT
from featurestore.definitions import FeatureType, Field
from featurestore.states import MISSING, all_missing, judge
from tests.featurestore.rows import make_view

VIEW = make_view(
    Field(name="delay", type=FeatureType.INT64, default=7),
    Field(name="gate", type=FeatureType.STRING),
    name="v",
    ttl_s=10,
)
CATALOG = ViewCatalog([VIEW])
SECOND = 1_000_000


def judged(values: list[object], age_us: int) -> dict[str, FeatureValue]:
    [(compiled, features)] = CATALOG.by_view(["v.delay", "v.gate"])
    return judge(compiled, features, values, event_us=SECOND, now_us=SECOND + age_us)


@pytest.mark.parametrize(
    ("stored", "value", "state"),
    [(3, 3, FeatureState.PRESENT), (None, None, FeatureState.NULL), (ABSENT, 7, FeatureState.DEFAULT)],
)
def test_a_fresh_value_is_present_null_or_default(stored: object, value: object, state: FeatureState) -> None:
    assert judged([stored, "B4"], 2 * SECOND)["v.delay"] == FeatureValue(value, state, 2.0)


def test_left_out_without_a_default_is_null() -> None:
    assert judged([3, ABSENT], 0)["v.gate"] == FeatureValue(None, FeatureState.NULL, 0.0)


def test_stale_begins_one_microsecond_past_the_ttl() -> None:
    assert judged([3, "B4"], 10 * SECOND)["v.delay"].state is FeatureState.PRESENT
    assert judged([3, "B4"], 10 * SECOND + 1)["v.delay"] == FeatureValue(3, FeatureState.STALE, 10.000001)


def test_a_stale_row_is_stale_in_every_field() -> None:
    values = judged([ABSENT, None], 11 * SECOND)
    assert values == {
        "v.delay": FeatureValue(7, FeatureState.STALE, 11.0),
        "v.gate": FeatureValue(None, FeatureState.STALE, 11.0),
    }


def test_a_row_from_the_future_is_present_with_a_negative_age() -> None:
    assert judged([3, "B4"], -SECOND)["v.delay"] == FeatureValue(3, FeatureState.PRESENT, -1.0)


def test_missing_has_neither_value_nor_age() -> None:
    assert FeatureValue(None, FeatureState.MISSING, None) == MISSING
    assert all_missing(["a.b", "c.d"]) == {"a.b": MISSING, "c.d": MISSING}

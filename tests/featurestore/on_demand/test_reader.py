"""Computed features are read like stored ones: in the same round trip, with states, ages and failures that hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from core_engine.contracts import Deadline, FeatureRow, FeatureState, FeatureValue, Scalar
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.readers import FeatureReader
from featurestore.definitions import FeatureType
from featurestore.on_demand.declaration import Custom, Difference, HashBucket, HourOfDay, Log1p, Ratio
from featurestore.on_demand.reader import OnDemandReader
from featurestore.states import MISSING
from tests.featurestore.on_demand.declared import COST, KnownReader, on_demand_view

USERS = "tests.featurestore.on_demand.functions_of_a_user"
NEVER = Deadline.never()
PRESENT, DEFAULT, STALE, NULL = (FeatureState(word) for word in ("present", "default", "stale", "null"))
VIEW = on_demand_view(
    {
        "over_mean": Ratio(of=("request.amount", "card.mean")),
        "size": Log1p(of=("made.over_mean",)),
        "hour": HourOfDay(of=("request.at",), time_zone="America/New_York"),
        "age_s": Difference(of=("request.at", "card.opened")),
        "slot": HashBucket(of=("request.merchant",), buckets=10),
    },
    {
        "amount": FeatureType.FLOAT64,
        "at": FeatureType.TIMESTAMP,
        "merchant": FeatureType.STRING,
    },
)
AT = datetime(2013, 7, 1, 9, tzinfo=timezone(timedelta(hours=-4)))
INPUTS: dict[str, Scalar] = {"amount": 50, "at": AT, "merchant": None, "unused": "x"}
VALUES = {
    "card.mean": FeatureValue(25.0, PRESENT, 60.0),
    "card.opened": FeatureValue(datetime(2013, 7, 1, 12, tzinfo=UTC), STALE, 5.0),
}


async def read(inner: FeatureReader, *refs: str, inputs: dict[str, Scalar] = INPUTS) -> FeatureRow:
    return await OnDemandReader(inner, [VIEW]).read(refs, {"card": "C1"}, NEVER, inputs=inputs)


async def test_one_read_brings_everything_and_only_what_was_asked_for_is_answered() -> None:
    inner = KnownReader(VALUES)
    row = await read(inner, "made.size", "made.age_s", "made.over_mean", "card.mean", "made.hour")
    assert inner.asked == [("card.mean", "card.opened")]
    assert inner.inputs == [INPUTS]
    assert list(row.values) == ["made.size", "made.age_s", "made.over_mean", "card.mean", "made.hour"]
    assert row.values["made.over_mean"] == FeatureValue(2.0, PRESENT, 60.0)
    assert row.values["made.age_s"] == FeatureValue(3600.0, STALE, 5.0)
    assert row.values["made.hour"] == FeatureValue(9, PRESENT, None)
    assert row.values["made.size"].value == pytest.approx(1.0986, abs=1e-4)
    assert row.values["card.mean"] is VALUES["card.mean"]


async def test_cost_instant_and_failure_are_those_of_the_read() -> None:
    row = await read(KnownReader({"card.mean": MISSING}, failure="deadline"), "made.over_mean")
    assert row == FeatureRow({"made.over_mean": MISSING}, COST, "deadline", at_us=7, unreadable=("other",))


async def test_features_of_the_request_alone_cost_no_read() -> None:
    inner = KnownReader({})
    row = await read(inner, "made.hour")
    assert inner.asked == []
    assert row == FeatureRow({"made.hour": FeatureValue(9, PRESENT)})


async def test_a_read_without_computed_features_is_the_inner_readers() -> None:
    inner = KnownReader(VALUES)
    row = await read(inner, "card.mean", inputs={})
    assert inner.asked == [("card.mean",)]
    assert row.values == {"card.mean": VALUES["card.mean"]}


async def test_an_input_left_out_makes_null() -> None:
    row = await read(KnownReader({}), "made.slot")
    assert row.values == {"made.slot": FeatureValue(None, NULL)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("amount", "50", r"request\.amount = '50': expected a number"),
        ("amount", True, r"request\.amount = True: expected a number"),
        ("at", datetime(2013, 7, 1), r"request\.at = .*: expected a datetime with a timezone"),
        ("merchant", 7, r"request\.merchant = 7: expected a string"),
    ],
)
async def test_an_input_of_another_type_is_refused_by_name_and_value(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        await read(KnownReader(VALUES), *[f"made.{f.name}" for f in VIEW.features], inputs=INPUTS | {name: value})
    assert refused.value.field == f"request.{name}"


async def test_an_input_that_the_predictor_does_not_declare_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"request\.merchant is read by an on-demand feature, but it is no input"):
        await read(KnownReader(VALUES), "made.slot", inputs={"amount": 1.0})


async def test_a_function_that_fails_is_missing_and_others_are_served() -> None:
    failing = on_demand_view(
        {
            "bad": Custom(of=("card.mean",), function=f"{USERS}:fails", returns=FeatureType.FLOAT64),
            "after": Log1p(of=("failing.bad",)),
            "good": Log1p(of=("card.mean",)),
        },
        name="failing",
    )
    reader = OnDemandReader(KnownReader(VALUES), [VIEW, failing])
    row = await reader.read(["failing.bad", "failing.after", "failing.good", "made.hour"], {}, NEVER, inputs=INPUTS)
    assert row.values["failing.bad"] == row.values["failing.after"] == MISSING
    assert row.values["failing.good"].state is PRESENT
    assert row.values["made.hour"].value == 9
    assert row.unreadable == ("other", "failing")
    assert row.failure is None


async def test_a_stored_feature_of_a_type_that_no_longer_fits_is_not_computed_with() -> None:
    row = await read(KnownReader({"card.mean": FeatureValue("25", PRESENT, 1.0)}), "made.over_mean")
    assert row.values == {"made.over_mean": MISSING}
    assert row.unreadable == ("other", "made")


async def test_what_is_undefined_is_null_and_stale_where_its_operand_is() -> None:
    for state, found in [(PRESENT, NULL), (DEFAULT, NULL), (STALE, STALE)]:
        row = await read(KnownReader({"card.mean": FeatureValue(0.0, state, 9.0)}), "made.over_mean", "made.size")
        assert row.values == dict.fromkeys(("made.over_mean", "made.size"), FeatureValue(None, found, 9.0))


async def test_a_lost_declaration_is_the_inner_readers_to_refuse() -> None:
    class Refusing:
        async def read(self, *args: object, **kwargs: object) -> FeatureRow:
            raise ConfigurationError("feature view 'card' is not declared")

    with pytest.raises(ConfigurationError, match="not declared"):
        await read(Refusing(), "made.over_mean")

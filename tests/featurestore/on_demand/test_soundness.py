"""A broken on-demand view is refused when it is declared, with every fault in words; no request meets one."""

from __future__ import annotations

import math
import re

import msgspec
import pytest

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType, Field
from featurestore.on_demand.declaration import (
    AnyTransform,
    Bucket,
    Cross,
    Custom,
    DayOfWeek,
    Difference,
    HashBucket,
    Haversine,
    HourOfDay,
    Log1p,
    OnDemandView,
    Ratio,
)
from featurestore.on_demand.plan import OnDemandPlan
from featurestore.on_demand.soundness import on_demand_faults
from tests.featurestore.on_demand.declared import on_demand_view
from tests.featurestore.rows import make_view

USERS = "tests.featurestore.on_demand.functions_of_a_user"
STORED = make_view(
    *(Field(name=kind.value, type=kind) for kind in FeatureType),
    Field(name="last", type=FeatureType.FLOAT64, is_list=True),
    name="card",
)
INPUTS = {"amount": FeatureType.FLOAT64, "at": FeatureType.TIMESTAMP}


def faults_of(*views: OnDemandView) -> str:
    return "; ".join(on_demand_faults([STORED], views))


SOUND: dict[str, AnyTransform] = {
    "hour": HourOfDay(of=("request.at",), time_zone="America/New_York"),
    "weekday": DayOfWeek(of=("card.timestamp",), time_zone="UTC"),
    "age_s": Difference(of=("request.at", "card.timestamp")),
    "over_mean": Ratio(of=("request.amount", "card@payer.float64")),
    "size": Log1p(of=("made.over_mean",)),
    "range": Bucket(of=("card.decimal",), boundaries=(0, 1.5)),
    "pair": Cross(of=("card.string", "made.hour", "card.bool")),
    "slot": HashBucket(of=("made.pair",), buckets=64, salt="slot"),
    "far": Haversine(of=("card.float64", "card.int64", "request.amount", "card.float64")),
    "count": Custom(of=("card.last",), function=f"{USERS}:length_of", returns=FeatureType.INT64),
}


def test_features_may_be_made_of_stored_ones_inputs_and_each_other() -> None:
    assert faults_of(on_demand_view(SOUND, INPUTS)) == ""


def test_a_view_is_data() -> None:
    view = on_demand_view(SOUND, INPUTS)
    assert msgspec.json.decode(msgspec.json.encode(view), type=OnDemandView) == view


@pytest.mark.parametrize(
    ("transform", "fault"),
    [
        (Log1p(of=("card.gone",)), "operand 'card.gone' is neither a declared feature nor a declared input"),
        (Log1p(of=("request.card",)), "operand 'request.card' is neither"),
        (Log1p(of=("amount",)), "operand 'amount' is neither"),
        (
            Log1p(of=("card.string",)),
            r"operand 'card.string' is string; expected one of decimal, float64, int64",
        ),
        (Log1p(of=("card.last",)), "operand 'card.last' is a list of float64"),
        (Log1p(of=("card.bool",)), "operand 'card.bool' is bool"),
        (HashBucket(of=("card.float64",), buckets=2), "operand 'card.float64' is float64"),
        (HourOfDay(of=("card.int64",), time_zone="UTC"), "operand 'card.int64' is int64"),
        (Difference(of=("request.at", "card.int64")), "mix a timestamp with a number"),
        (Difference(of=("card.int64",)), "it needs 2 operands, got 1"),
        (Log1p(of=()), "it needs 1 operands, got 0"),
        (Cross(of=("card.string",)), "it needs 2 or more operands, got 1"),
        (Custom(of=(), function=f"{USERS}:root", returns=FeatureType.FLOAT64), "it needs 1 or more operands, got 0"),
        (HashBucket(of=("card.string",), buckets=0), "it needs 1 to .* buckets"),
        (HashBucket(of=("card.string",), buckets=2, salt="x" * 17), "a salt of at most 16 bytes"),
        (Bucket(of=("card.int64",), boundaries=()), "its boundaries must be finite and ascending"),
        (Bucket(of=("card.int64",), boundaries=(1, 1)), "its boundaries must be finite and ascending"),
        (Bucket(of=("card.int64",), boundaries=(0, math.inf)), "its boundaries must be finite and ascending"),
        (HourOfDay(of=("request.at",), time_zone="Mars/Olympus"), "time zone 'Mars/Olympus' is unknown"),
        (DayOfWeek(of=("request.at",), time_zone="America"), "time zone 'America' is unknown"),
        (Custom(of=("card.last",), function=f"{USERS}:gone", returns=FeatureType.INT64), "cannot be loaded.*gone"),
        (Custom(of=("card.last",), function="length_of", returns=FeatureType.INT64), "cannot be loaded"),
        (Custom(of=("card.last",), function=f"{USERS}:NOT_A_FUNCTION", returns=FeatureType.INT64), "cannot be called"),
        (Custom(of=("card.last",), function=f"{USERS}:root", returns=FeatureType.DECIMAL), "cannot give decimal"),
    ],
)
def test_a_fault_of_a_transform_is_told_by_feature(transform: AnyTransform, fault: str) -> None:
    told = faults_of(on_demand_view({"f": transform}, INPUTS))
    assert re.search(rf"on-demand feature made\.f: .*{fault}", told), told


def test_every_fault_is_told_at_once() -> None:
    told = faults_of(on_demand_view({"one": Log1p(of=("card.gone",)), "two": Ratio(of=("card.int64",))}))
    assert "made.one" in told
    assert "made.two" in told


def test_a_circle_is_told_by_its_members() -> None:
    one = on_demand_view({"a": Log1p(of=("other.b",))}, name="one")
    other = on_demand_view({"b": Log1p(of=("one.a",))}, name="other")
    assert "in a circle: " in faults_of(one, other)
    assert "one.a reads other.b" in faults_of(one, other)
    with pytest.raises(ConfigurationError, match="in a circle"):
        OnDemandPlan([one, other])


def test_an_input_has_one_type() -> None:
    one = on_demand_view({"a": Log1p(of=("request.amount",))}, {"amount": FeatureType.FLOAT64}, name="one")
    other = on_demand_view({"a": Log1p(of=("request.amount",))}, {"amount": FeatureType.INT64}, name="other")
    assert "input 'amount' is declared int64 here and float64 by another view" in faults_of(one, other)


@pytest.mark.parametrize("kind", [FeatureType.BYTES, FeatureType.DECIMAL])
def test_an_input_is_what_a_request_can_carry(kind: FeatureType) -> None:
    view = on_demand_view({"f": Log1p(of=("card.int64",))}, {"raw": kind})
    assert faults_of(view) == f"on-demand view made: input 'raw' cannot be {kind} in a request"


def test_names_are_names() -> None:
    view = on_demand_view({"a.b": Log1p(of=("card.int64",))}, name="request")
    assert "no view may be named 'request'" in faults_of(view)
    assert "'a.b' is no name" in faults_of(view)
    with pytest.raises(ConfigurationError, match="on-demand view made: it declares no feature"):
        on_demand_view({})
    with pytest.raises(ConfigurationError, match="names must be distinct"):
        msgspec.structs.replace(view, features=view.features * 2)


def test_a_plan_takes_no_unsound_transform() -> None:
    with pytest.raises(ConfigurationError, match=r"on-demand feature made\.f: it needs 1 to .* buckets"):
        OnDemandPlan([on_demand_view({"f": HashBucket(of=("card.string",), buckets=0)})])


def test_what_is_needed_is_asked_for_once_and_in_order() -> None:
    plan = OnDemandPlan([on_demand_view(SOUND, INPUTS)])
    needs = plan.needs(["made.slot", "made.size", "card.int64", "made.pair"])
    assert set(needs.features) == {"card.string", "card.bool", "card@payer.float64", "card.int64"}
    assert len(needs.features) == 4
    assert set(needs.inputs) == {"at", "amount"}
    for before, after in [("hour", "pair"), ("pair", "slot"), ("over_mean", "size")]:
        assert needs.steps.index(f"made.{before}") < needs.steps.index(f"made.{after}")
    assert len(needs.steps) == 5

"""Which version answers: sticky by entity, and an entity only moves in when a canary's percentage grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import InvalidRequest, UnknownName
from core_engine.predictors.declaration import InputField, InputKind, Predictor
from core_engine.predictors.registry import RegistryView
from core_engine.predictors.traffic import choose, input_faults, point, sticky_key
from tests.core_engine.predictors.doubles import INPUTS, delay_predictor

AIRPORTS = st.text("ABCDEFGHIJ", min_size=1, max_size=4)
REQUESTS = st.fixed_dictionaries(
    {"origin": AIRPORTS, "dest": AIRPORTS, "departure": st.just(INPUTS["departure"])},
    optional={"seats": st.integers(1, 900), "price": st.floats(0, 1e6), "is_charter": st.booleans()},
)
PERCENTS = st.floats(0, 100)


@pytest.fixture(scope="module")
def live() -> Iterator[Predictor]:
    with TemporaryDirectory() as folder:
        yield delay_predictor(Path(folder))


def view(live: Predictor, percent: float) -> RegistryView:
    """Version 2 is the canary beside version 1."""
    versions = {("delay", version): msgspec.structs.replace(live, version=version) for version in (1, 2)}
    return RegistryView(versions, {("delay", "live"): 1, ("delay", "canary"): 2}, {"delay": percent})


def answers(live: Predictor, percent: float, inputs: dict[str, Any]) -> int:
    return choose(view(live, percent), "delay", inputs).version


@given(inputs=REQUESTS, one=PERCENTS, other=PERCENTS)
def test_a_larger_percentage_only_moves_entities_in(
    live: Predictor, inputs: dict[str, Any], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert answers(live, low, inputs) <= answers(live, high, inputs)


@given(inputs=REQUESTS, others=REQUESTS, percent=PERCENTS)
def test_an_entity_stays_on_its_side_whatever_else_a_request_says(
    live: Predictor, inputs: dict[str, Any], others: dict[str, Any], percent: float
) -> None:
    same = others | {"origin": inputs["origin"], "dest": inputs["dest"]}
    assert answers(live, percent, same) == answers(live, percent, inputs)


@given(inputs=REQUESTS)
def test_none_is_none_and_all_are_all(live: Predictor, inputs: dict[str, Any]) -> None:
    assert answers(live, 0.0, inputs) == 1
    assert answers(live, 100.0, inputs) == 2


@given(name=st.text(min_size=1), key=st.text())
def test_a_point_is_within_0_and_100_and_always_the_same(name: str, key: str) -> None:
    assert 0 <= point(name, key) < 100
    assert point(name, key) == point(name, key)


def test_points_are_those_of_every_release() -> None:
    """A release that hashed otherwise would move every entity of every canary that runs."""
    assert [round(point("delay", key), 6) for key in ("JFK-LAX", "JFK-SFO")] == [88.542778, 32.782262]


def test_the_share_of_entities_is_the_percentage() -> None:
    num_in = sum(point("delay", str(entity)) < 5.0 for entity in range(20_000))
    assert 0.045 < num_in / 20_000 < 0.055  # three standard deviations of a fair draw are 0.0046


def test_predictors_draw_apart() -> None:
    both = sum(max(point("delay", str(entity)), point("risk", str(entity))) < 50 for entity in range(20_000))
    assert 0.23 < both / 20_000 < 0.27


def test_without_an_entity_all_inputs_are_the_key_in_any_order(live: Predictor) -> None:
    loose = msgspec.structs.replace(live, entities=(), features=())
    turned = dict(reversed(INPUTS.items()))
    assert sticky_key(loose, turned) == sticky_key(loose, INPUTS)
    assert sticky_key(loose, INPUTS | {"seats": 3}) != sticky_key(loose, INPUTS)
    utc = INPUTS | {"departure": "2013-11-05T22:30:00Z"}
    assert sticky_key(loose, utc) == sticky_key(loose, INPUTS)


def test_other_aliases_are_not_split_and_names_are_checked(live: Predictor) -> None:
    everything = view(live, 100.0)
    assert choose(everything, "delay", INPUTS, alias="canary").version == 2
    with pytest.raises(UnknownName, match="alias 'shadow'"):
        choose(everything, "delay", INPUTS, alias="shadow")


def test_a_request_without_its_entity_is_refused_only_where_a_canary_runs(live: Predictor) -> None:
    assert answers(live, 0.0, {}) == 1
    with pytest.raises(InvalidRequest, match="'origin' is missing"):
        answers(live, 5.0, {})


def changed(live: Predictor, **changes: dict[str, Any] | None) -> Predictor:
    """With some inputs changed, left out (None), or new."""
    fields = {field.name: field for field in live.inputs}
    for name, change in changes.items():
        if change is None:
            del fields[name]
        else:
            known = fields.get(name, InputField(name=name, kind=InputKind.STRING))
            fields[name] = msgspec.structs.replace(known, **change)
    return msgspec.structs.replace(live, version=2, inputs=tuple(fields.values()))


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, []),
        ({"gate": {"required": False}}, []),
        ({"dest": {"required": False}}, []),
        ({"seats": None}, ["input 'seats' is not known there"]),
        ({"seats": {"required": True}}, ["input 'seats' is an optional int here, a required int there"]),
        ({"price": {"kind": InputKind.INT}}, ["input 'price' is an optional float here, an optional int there"]),
        ({"gate": {}}, ["input 'gate' is required there and not known here"]),
    ],
)
def test_a_version_that_would_refuse_what_live_takes_is_found(
    live: Predictor, changes: dict[str, Any], faults: list[str]
) -> None:
    assert list(input_faults(live, changed(live, **changes))) == faults

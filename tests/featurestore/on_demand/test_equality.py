"""The same values and states online, row by row, and offline, column by column, for every function."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from core_engine.contracts import Deadline, FeatureState, FeatureValue
from core_engine.errors import InvalidRequest
from featurestore.definitions import FeatureType, Field
from featurestore.materialize import materialize
from featurestore.offline.source_schema import arrow_type
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
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
    Ratio,
)
from featurestore.on_demand.join import on_demand_join
from featurestore.on_demand.reader import OnDemandReader
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.featurestore.on_demand.declared import KnownReader, KnownStore, on_demand_view
from tests.featurestore.rows import HOUR, NOW, PROPERTY, make_view, write_source
from tests.featurestore.values import same, values_of

USERS = "tests.featurestore.on_demand.functions_of_a_user"
NEVER = Deadline.never()
DAY_S = 86_400.0
STORED = {kind.value: Field(name=kind.value, type=kind) for kind in FeatureType}
STORED |= {
    "money": Field(name="money", type=FeatureType.DECIMAL, decimal_places=2),
    "tags": Field(name="tags", type=FeatureType.STRING, is_list=True),
    "degrees": Field(name="degrees", type=FeatureType.FLOAT64),
}
REQUESTED = {
    "amount": FeatureType.FLOAT64,
    "count": FeatureType.INT64,
    "word": FeatureType.STRING,
    "at": FeatureType.TIMESTAMP,
    "flag": FeatureType.BOOL,
}
FUNCTIONS: dict[str, AnyTransform] = {
    **{
        f"hashed_{kind}": HashBucket(of=(f"card.{kind}",), buckets=2**40, salt="é")
        for kind in ("bool", "int64", "string", "bytes", "timestamp")
    },
    "hashed_input": HashBucket(of=("request.at",), buckets=7),
    "range": Bucket(of=("card.float64",), boundaries=(-1.0, 0.0, 1e9)),
    "range_of_decimal": Bucket(of=("card.decimal",), boundaries=(-1.0, 0.0, 1e9)),
    "range_of_input": Bucket(of=("request.count",), boundaries=(0.0, 5.5)),
    "pair": Cross(of=("card.string", "request.word", "card.int64", "request.flag")),
    "slot": HashBucket(of=("made.pair",), buckets=1000),
    "ratio": Ratio(of=("request.amount", "card.float64")),
    "ratio_of_decimals": Ratio(of=("card.money", "card.decimal")),
    "gap": Difference(of=("card.int64", "request.count")),
    "age_s": Difference(of=("request.at", "card.timestamp")),
    "size": Log1p(of=("card.float64",)),
    "size_of_ratio": Log1p(of=("made.ratio",)),
    "km": Haversine(of=("card.degrees", "card.float64", "card.degrees", "request.amount")),
    "hour": HourOfDay(of=("card.timestamp",), time_zone="America/New_York"),
    "weekday": DayOfWeek(of=("request.at",), time_zone="Asia/Kathmandu"),
    "initial": Custom(of=("card.string",), function=f"{USERS}:initials", returns=FeatureType.STRING),
    "num_tags": Custom(of=("card.tags",), function=f"{USERS}:length_of", returns=FeatureType.INT64),
    "root": Custom(of=("card.float64",), function=f"{USERS}:root", returns=FeatureType.FLOAT64),
    "tomorrow": Custom(of=("request.at",), function=f"{USERS}:next_day", returns=FeatureType.TIMESTAMP),
}
VIEW = on_demand_view(FUNCTIONS, REQUESTED)
REFS = [f"made.{name}" for name in FUNCTIONS]


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of stored features, by reference, and of inputs, by name."""

    stored: Sequence[Mapping[str, FeatureValue]]
    inputs: Sequence[Mapping[str, Any]]


def scalars(field: Field) -> st.SearchStrategy[Any]:
    """Values that meet now and then: zeros, equal ones, and those at the ends."""
    if field.name == "degrees":
        return st.floats(-95, 95)
    if field.name == "timestamp":  # a day is added to one, which the last day of the calendar has no room for
        return values_of(field).map(lambda instant: instant.astimezone(UTC))
    if field.type is FeatureType.FLOAT64 and not field.is_list:
        return st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0]), values_of(field))
    return values_of(field)


@st.composite
def stated(draw: st.DrawFn, field: Field) -> FeatureValue:
    state = draw(st.sampled_from(FeatureState))
    has_value = state in (FeatureState.PRESENT, FeatureState.DEFAULT) or (
        state is FeatureState.STALE and draw(st.booleans())
    )
    return FeatureValue(draw(scalars(field)) if has_value else None, state, None)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_rows = draw(st.integers(1, 4))
    fields = {name: Field(name=name, type=kind) for name, kind in REQUESTED.items()}
    stored = [{f"card.{name}": draw(stated(field)) for name, field in STORED.items()} for _ in range(num_rows)]
    inputs = [{n: draw(st.one_of(st.none(), scalars(field))) for n, field in fields.items()} for _ in range(num_rows)]
    return Case(stored, inputs)


def offline(case: Case) -> pa.Table:
    columns = {}
    for name, field in STORED.items():
        ref = f"card.{name}"
        values = pa.array([row[ref].value for row in case.stored], arrow_type(field))
        columns[ref] = values, [row[ref].state for row in case.stored]
    spine = {name: pa.array([row[name] for row in case.inputs], arrow_type(Field(name=name, type=kind)))
             for name, kind in REQUESTED.items()}  # fmt: skip
    return on_demand_join(KnownStore(columns), [VIEW], pa.table(spine), REFS, {}, "at")


async def online(case: Case) -> list[Mapping[str, FeatureValue]]:
    rows = []
    for stored, inputs in zip(case.stored, case.inputs, strict=True):
        row = await OnDemandReader(KnownReader(stored), [VIEW]).read(REFS, {}, NEVER, inputs=inputs)
        assert row.unreadable == ("other",)
        rows.append(row.values)
    return rows


@PROPERTY
@given(cases())
def test_every_function_gives_the_same_for_one_row_and_for_many(case: Case) -> None:
    table = offline(case)
    for i, row in enumerate(asyncio.run(online(case))):
        for ref in REFS:
            assert table[ref + STATE_SUFFIX][i].as_py() == row[ref].state.value, ref
            assert same(table[ref][i].as_py(), row[ref].value), ref


@PROPERTY
@given(cases())
def test_the_worst_state_of_the_operands_is_the_features(case: Case) -> None:
    """Missing, else null, else stale, else default; a present or default one is null only where it is undefined."""
    worst = [FeatureState(word) for word in ("missing", "null", "stale", "default", "present")]
    for row, stored, inputs in zip(asyncio.run(online(case)), case.stored, case.inputs, strict=True):
        states = {ref: value.state for ref, value in stored.items()}
        states |= {f"request.{n}": FeatureState.NULL if v is None else FeatureState.PRESENT for n, v in inputs.items()}
        for ref, transform in zip(REFS, FUNCTIONS.values(), strict=True):
            wanted = min((states[operand] for operand in transform.of), key=worst.index)
            states[ref] = row[ref].state
            if row[ref].value is not None or wanted not in (FeatureState.PRESENT, FeatureState.DEFAULT):
                assert row[ref].state is wanted
            else:
                assert row[ref].state is FeatureState.NULL


async def test_real_stores_agree_on_every_state(client: Redis, tmp_path: Path) -> None:
    """Parquet and Valkey: a card that is present, one null, one stale, one that nobody knows; a default beside."""
    fields = (
        Field(name="spent", type=FeatureType.DECIMAL, decimal_places=2),
        Field(name="limit", type=FeatureType.FLOAT64, default=200),
    )
    history = {
        "entity_key": ["C1", "C2", "C3"],
        "event_time": [NOW - HOUR / 2, NOW - HOUR / 2, NOW - 2 * HOUR],
        "created_time": [NOW - HOUR / 2, NOW - HOUR / 2, NOW - HOUR],
        "spent": pa.array([Decimal("50.00"), None, Decimal("25.50")], pa.decimal128(9, 2)),
    }
    card = make_view(*fields, name="card", entity="card", path=write_source(tmp_path / "card.parquet", history))
    view = on_demand_view(
        {
            "share": Ratio(of=("card.spent", "card.limit")),
            "left": Difference(of=("card.limit", "request.amount")),
            "hour": HourOfDay(of=("request.at",), time_zone="America/New_York"),
        },
        {"amount": FeatureType.FLOAT64, "at": FeatureType.TIMESTAMP},
    )
    refs = ["made.share", "card.spent", "made.left", "made.hour"]
    store = OnlineStore(client, [card], DAY_S)
    await materialize(card, store, NOW)
    reader = OnDemandReader(OnlineFeatureReader(store, [card], clock=lambda: NOW), [view])
    keys = ["C1", "C2", "C3", "C4"]
    spine = pa.table({"key": keys, "amount": [30, 30, 30, 30], "at": pa.array([NOW] * 4, pa.timestamp("us", "UTC"))})
    table = on_demand_join(OfflineStore([card]), [view], spine, refs, {"card": "key"}, "at")
    assert table.column_names[:3] == ["key", "amount", "at"]
    assert table.column_names[3:] == [name for ref in refs for name in (ref, ref + STATE_SUFFIX)]
    for i, key in enumerate(keys):
        row = await reader.read(refs, {"card": key}, NEVER, inputs={"amount": 30, "at": NOW})
        assert row.cost.round_trips == 1
        for ref in refs:
            assert same(table[ref][i].as_py(), row.values[ref].value)
            assert table[ref + STATE_SUFFIX][i].as_py() == row.values[ref].state.value
    assert table["made.share"].to_pylist() == [0.25, None, 0.1275, None]
    assert table[f"made.share{STATE_SUFFIX}"].to_pylist() == ["default", "null", "stale", "missing"]
    assert table[f"made.hour{STATE_SUFFIX}"].to_pylist() == ["present"] * 4


SPINE = pa.table({"at": pa.array([NOW], pa.timestamp("us", "UTC")), "spend": [1]})
AMOUNT = on_demand_view({"size": Log1p(of=("request.amount",))}, {"amount": FeatureType.FLOAT64})


def test_an_input_may_be_in_a_column_of_another_name() -> None:
    columns = {"amount": "spend"}
    table = on_demand_join(KnownStore({}), [AMOUNT], SPINE, ["made.size"], {}, "at", columns)
    assert table["made.size"].to_pylist() == [pytest.approx(0.693147, abs=1e-6)]


@pytest.mark.parametrize(
    ("spine", "message"),
    [
        (SPINE, "the spine has no column 'amount' for input 'amount'; it has"),
        (SPINE.append_column("amount", pa.array(["1"])), "spine column amount is string: expected float64"),
        (SPINE.append_column("amount", pa.array([2**53 + 1])), "spine column amount is int64: expected float64"),
        (SPINE.append_column("amount", pa.array([1.0])).append_column("made.size", pa.array([1])), "made.size"),
    ],
)
def test_a_spine_that_does_not_fit_is_refused_by_column(spine: pa.Table, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        on_demand_join(KnownStore({}), [AMOUNT], spine, ["made.size"], {}, "at")

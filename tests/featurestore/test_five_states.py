"""Each of the five states from Parquet through Valkey to the model's row, the reply and the training table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from redis.asyncio import Redis

from core_engine.contracts import FeatureState, Prediction, Rung
from core_engine.costs.spool import Spool
from core_engine.metrics import Metrics
from core_engine.predictors.declaration import Column, ColumnKind, FeatureUse, OnState
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.materialize import materialize
from featurestore.offline.store import STATE_SUFFIX, OfflineStore
from featurestore.on_demand.declaration import Ratio
from featurestore.on_demand.join import on_demand_join
from featurestore.on_demand.reader import OnDemandReader
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from tests.core_engine.predictors.conftest import Ladder
from tests.core_engine.predictors.doubles import INPUTS, delay_predictor
from tests.featurestore.on_demand.declared import on_demand_view
from tests.featurestore.rows import HOUR, NOW, make_view, write_source

DAY_S = 86_400.0
HALF_AN_HOUR, TWO_HOURS = HOUR / 2, 2 * HOUR
DECLARED_DEFAULT = 7.0


@dataclass(frozen=True, slots=True)
class Case:
    """A route, one of its features, and what each end must say of it: state, age, and the value where there is one."""

    dest: str
    feature: str
    state: FeatureState
    value: float | None
    age_s: float | None


CASES = [
    Case("LAX", "delay", FeatureState.PRESENT, 12.5, 1800.0),
    Case("LAX", "share", FeatureState.DEFAULT, 0.25, 1800.0),
    Case("SFO", "delay", FeatureState.NULL, None, 1800.0),
    Case("SEA", "delay", FeatureState.STALE, 40.0, 7200.0),
    Case("ORD", "delay", FeatureState.MISSING, None, None),
]
COMPUTED = [  # delay / share
    Case("LAX", "ratio", FeatureState.DEFAULT, 50.0, 1800.0),
    Case("SFO", "ratio", FeatureState.NULL, None, 1800.0),
    Case("SEA", "ratio", FeatureState.STALE, 160.0, 7200.0),
    Case("ORD", "ratio", FeatureState.MISSING, None, None),
]


@pytest.fixture
def view(tmp_path: Path) -> FeatureView:
    history = {
        "entity_key": ["JFK-LAX", "JFK-SFO", "JFK-SEA"],
        "event_time": [NOW - HALF_AN_HOUR, NOW - HALF_AN_HOUR, NOW - TWO_HOURS],
        "created_time": [NOW - HALF_AN_HOUR, NOW - HALF_AN_HOUR, NOW - TWO_HOURS],
        "delay": pa.array([12.5, None, 40.0]),
    }
    fields = (
        Field(name="delay", type=FeatureType.FLOAT64),
        Field(name="share", type=FeatureType.FLOAT64, default=0.25),
    )
    return make_view(*fields, entity="route", path=write_source(tmp_path / "route.parquet", history), ttl_s=3600)


@pytest.fixture
def ladder(tmp_path: Path) -> Iterator[Ladder]:
    metrics = Metrics()
    spool = Spool(tmp_path / "spool", "door", metrics)
    yield Ladder(tmp_path, delay_predictor(tmp_path), spool, metrics, feature_cap_s=10.0)  # a real store may be slow
    spool.close()


def made_of(view: FeatureView) -> str:
    return f"{view.name}_made"


def ref_of(view: FeatureView, case: Case) -> str:
    return f"{made_of(view) if case.feature == 'ratio' else view.name}.{case.feature}"


async def predicted(ladder: Ladder, client: Redis, view: FeatureView, case: Case, action: OnState) -> Prediction:
    store = OnlineStore(client, [view], DAY_S)
    await materialize(view, store, NOW)
    on_demand = on_demand_view({"ratio": Ratio(of=(f"{view.name}.delay", f"{view.name}.share"))}, name=made_of(view))
    ref = ref_of(view, case)
    use = FeatureUse(ref=ref, on_missing=action, on_stale=action, on_null=action, default=DECLARED_DEFAULT)
    columns = (ladder.predictor.columns[0], Column(name="f", kind=ColumnKind.NUMERIC, source=ref))
    reader = OnDemandReader(OnlineFeatureReader(store, [view], clock=lambda: NOW), [on_demand])
    asking = replace(ladder, features=reader)  # type: ignore[arg-type]
    predictor = msgspec.structs.replace(
        ladder.predictor, features=(use,), columns=columns, student=None, ladder=(Rung.MODEL, Rung.PRIOR)
    )
    return await asking.predict(INPUTS | {"dest": case.dest}, predictor=predictor)


@pytest.mark.parametrize("case", [*CASES, *COMPUTED], ids=lambda c: f"{c.feature}-{c.state}")
async def test_a_state_reaches_the_model_and_the_reply(
    ladder: Ladder, client: Redis, view: FeatureView, case: Case
) -> None:
    prediction = await predicted(ladder, client, view, case, OnState.USE)
    assert prediction.feature_states == {ref_of(view, case): case.state}
    assert prediction.feature_ages_s == {ref_of(view, case): case.age_s}
    assert prediction.usage.feature.round_trips == 1
    seen = math.nan if case.value is None else case.value
    assert ladder.engine.scored_vector()[1] == pytest.approx(seen, nan_ok=True)


@pytest.mark.parametrize("case", [*CASES, *COMPUTED], ids=lambda c: f"{c.feature}-{c.state}")
@pytest.mark.parametrize(
    ("action", "rung"),
    [(OnState.DEFAULT, Rung.MODEL), (OnState.NEXT_RUNG, Rung.PRIOR), (OnState.REFUSE, Rung.NONE)],
)
async def test_what_is_declared_for_a_state_is_done(
    ladder: Ladder, client: Redis, view: FeatureView, case: Case, action: OnState, rung: Rung
) -> None:
    prediction = await predicted(ladder, client, view, case, action)
    has_value = case.state in (FeatureState.PRESENT, FeatureState.DEFAULT)
    assert prediction.rung is (Rung.MODEL if has_value else rung)
    assert prediction.feature_states == {ref_of(view, case): case.state}
    if prediction.rung is Rung.MODEL:
        assert ladder.engine.scored_vector()[1] == (case.value if has_value else DECLARED_DEFAULT)


@pytest.mark.parametrize("case", [*CASES, *COMPUTED], ids=lambda c: f"{c.feature}-{c.state}")
def test_a_training_table_says_the_same(view: FeatureView, case: Case) -> None:
    on_demand = on_demand_view({"ratio": Ratio(of=(f"{view.name}.delay", f"{view.name}.share"))}, name=made_of(view))
    spine = pa.table({"route": [f"JFK-{case.dest}"], "at": pa.array([NOW], pa.timestamp("us", "UTC"))})
    ref = ref_of(view, case)
    table = on_demand_join(OfflineStore([view]), [on_demand], spine, [ref], {"route": "route"}, "at")
    assert table[ref].to_pylist() == [case.value]
    assert table[ref + STATE_SUFFIX].to_pylist() == [case.state]

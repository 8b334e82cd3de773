from __future__ import annotations

from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from core_engine.contracts import FeatureRow, FeatureState, FeatureValue, Rung
from core_engine.errors import InvalidRequest
from core_engine.predictors.declaration import Artifact, LMGenerate, Predictor
from core_engine.predictors.feature_use import Judgement, judge
from core_engine.predictors.inputs import check_inputs, entity_keys
from core_engine.predictors.soundness import check_declaration
from core_engine.scoring.encoding import RowEncoder
from examples.flights.predictors import FEATURES, Artifacts, Categories, delay_risk, flight_notice
from featurestore.catalog import ViewCatalog
from featurestore.definitions import FeatureView

CATEGORIES = Categories(carriers=("AA", "UA"), origins=("EWR", "JFK", "LGA"), dests=("LAX", "ORD"))
NOWHERE = Artifact(path="/nowhere", sha256="0" * 64)
INPUTS = {
    "carrier": "UA",
    "origin": "JFK",
    "dest": "LAX",
    "scheduled_departure": datetime(2026, 11, 30, 17, 30, tzinfo=timezone(timedelta(hours=-5))),
}


@pytest.fixture
def risk() -> Predictor:
    return delay_risk(CATEGORIES, Artifacts(NOWHERE, NOWHERE, NOWHERE, prior_fallback=0.24))


def test_both_declarations_hang_together(risk: Predictor) -> None:
    for predictor in (risk, flight_notice()):
        check_declaration(predictor)
        assert msgspec.json.decode(predictor.to_json(), type=Predictor) == predictor


def test_the_ladder_and_the_budget_are_the_designs(risk: Predictor) -> None:
    assert risk.ladder == (Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR)
    assert risk.budget_ms == 50
    assert risk.label == "late"


def test_every_feature_is_declared_by_a_view_of_a_keyed_entity(risk: Predictor, views: tuple[FeatureView, ...]) -> None:
    catalog = ViewCatalog(views)
    entities = {use.entity for use in risk.entities}
    assert {catalog.resolve(use.ref).compiled.view.entity for use in risk.features} == entities


def test_a_request_gives_the_keys_and_a_row_also_without_the_distance(risk: Predictor) -> None:
    inputs = check_inputs(risk, INPUTS)
    assert entity_keys(risk, inputs) == {"route": "JFK-LAX", "carrier": "UA", "airport": "JFK"}
    row = RowEncoder(risk.columns).encode(inputs)
    assert row[:5].tolist() == [1, 1, 0, 17.5, 0]


@pytest.mark.parametrize(
    "change",
    [{"carrier": None}, {"scheduled_departure": datetime(2026, 11, 30)}, {"distance": -1.0}, {"tailnum": "N1"}],
)
def test_a_request_that_does_not_fit_is_refused(risk: Predictor, change: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        check_inputs(risk, INPUTS | change)


def judged(**states: FeatureState) -> Judgement:
    """All features present, but for the views given."""
    state_of = {use.ref: states.get(use.ref.split(".")[0], FeatureState.PRESENT) for use in FEATURES}
    values = {
        ref: FeatureValue(None if state in (FeatureState.MISSING, FeatureState.NULL) else 99.0, state)
        for ref, state in state_of.items()
    }
    return judge(FEATURES, FeatureRow(values))


class TestStates:
    """What this predictor makes of each absence."""

    def test_a_new_route_and_an_hour_without_weather_are_answered_by_the_model(self) -> None:
        judgement = judged(route_daily=FeatureState.MISSING, weather_hourly=FeatureState.MISSING)
        assert judgement.skip_model is None
        assert judgement.values["route_daily.mean_delay"] is None
        assert judgement.values["weather_hourly.temp"] is None

    def test_a_carrier_that_the_nightly_job_does_not_know_goes_to_the_next_rung(self) -> None:
        judgement = judged(carrier_daily=FeatureState.MISSING)
        assert judgement.skip_model is not None
        assert "carrier_daily.mean_delay is missing" in judgement.skip_model
        assert judgement.refuse is None

    def test_a_window_that_the_stream_left_behind_is_an_ordinary_hour(self) -> None:
        judgement = judged(airport_departures=FeatureState.STALE)
        assert judgement.skip_model is None
        assert judgement.values["airport_departures.mean_delay"] == 8.0
        assert judgement.states["airport_departures.mean_delay"] is FeatureState.STALE

    def test_old_weather_is_better_than_none(self) -> None:
        assert judged(weather_hourly=FeatureState.STALE).values["weather_hourly.temp"] == 99.0

    def test_an_idle_airport_is_absent_not_zero(self) -> None:
        assert judged(airport_departures=FeatureState.NULL).values["airport_departures.mean_delay"] is None


def test_the_notice_is_short_text_under_the_platforms_own_prompt() -> None:
    model = flight_notice().model
    assert isinstance(model, LMGenerate)
    assert model.max_tokens == 120
    assert "passengers" in model.system_prompt

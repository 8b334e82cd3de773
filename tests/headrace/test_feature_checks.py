"""A predictor's references against the views that are registered, before anybody is served from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import EntityUse, FeatureUse, InputField, InputKind, Predictor
from core_engine.predictors.tables import open_database
from examples.flights.features import feature_views
from examples.flights.predictors import ENTITIES, FEATURES, INPUTS
from examples.flights.repository import flight_repository
from featurestore.lifecycle.changes import apply
from headrace.feature_checks import check_features, feature_faults
from headrace.migrations import upgrade
from tests.core_engine.predictors.doubles import delay_predictor

REPOSITORY = flight_repository(feature_views(Path("nowhere")))
COMPUTED = FeatureUse(ref="flight_moment.hour")
RELATED = FeatureUse(ref="flight_moment.route_over_carrier")


def predictor(folder: Path, *uses: FeatureUse, **changes: Any) -> Predictor:
    declared = {"inputs": INPUTS, "entities": ENTITIES, "features": (*FEATURES, *uses)} | changes
    return delay_predictor(folder, **declared)


def faults(declared: Predictor) -> str:
    return "; ".join(feature_faults(declared, REPOSITORY.views, REPOSITORY.on_demand_views))


def test_stored_and_computed_features_that_a_request_can_give_are_sound(tmp_path: Path) -> None:
    destination = EntityUse(entity="dest", fields=("dest",))
    uses = (COMPUTED, RELATED, FeatureUse(ref="weather_hourly@dest.temp"))
    assert faults(predictor(tmp_path, *uses, entities=(*ENTITIES, destination))) == ""


@pytest.mark.parametrize(
    ("uses", "changes", "words"),
    [
        ((FeatureUse(ref="weather_hourl.temp"),), {}, "'weather_hourl' is not declared"),
        ((FeatureUse(ref="weather_hourly.tempo"),), {}, "no feature 'tempo'"),
        ((), {"entities": ENTITIES[1:]}, "by the key of entity 'route', which the predictor does not declare"),
        ((RELATED,), {"features": (RELATED,), "entities": ENTITIES[1:]}, "feature route_daily.mean_delay is read"),
        ((FeatureUse(ref="weather_hourly@dest.temp"),), {}, "by the key of entity 'dest'"),
        (
            (COMPUTED,),
            {"inputs": tuple(f for f in INPUTS if f.name != "scheduled_departure")},
            "'scheduled_departure' of kind timestamp; the predictor has none of that name",
        ),
        (
            (COMPUTED,),
            {"inputs": (*INPUTS[:3], InputField(name="scheduled_departure", kind=InputKind.INT))},
            "of kind timestamp; the predictor has int",
        ),
    ],
)
def test_what_a_request_cannot_be_given_is_named(
    tmp_path: Path, uses: tuple[FeatureUse, ...], changes: dict[str, Any], words: str
) -> None:
    assert words in faults(predictor(tmp_path, *uses, **changes))


def test_it_is_judged_by_what_the_register_holds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'headrace.db'}"
    upgrade(url)
    database = open_database(url)
    with pytest.raises(ConfigurationError, match="delay_risk:1: feature view 'route_daily' is not declared"):
        check_features(database, predictor(tmp_path, name="delay_risk"))
    with Session(database) as session, session.begin():
        apply(session, REPOSITORY)
    check_features(database, predictor(tmp_path, name="delay_risk"))
    database.dispose()

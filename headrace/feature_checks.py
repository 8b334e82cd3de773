"""Whether a predictor can be given the features that it names: its references against the registered views.

Neither side knows the other (`core_engine` no views, `featurestore` no predictors); here both are known. It is asked
before an alias points at a version: at a request the same fault would only show as features that are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import InputKind, Predictor
from featurestore.catalog import ViewCatalog
from featurestore.definitions import FeatureType, FeatureView
from featurestore.on_demand.declaration import OnDemandView
from featurestore.on_demand.plan import OnDemandPlan
from featurestore.registry import load_on_demand_views, load_views

KINDS: Final = {
    FeatureType.STRING: InputKind.STRING,
    FeatureType.INT64: InputKind.INT,
    FeatureType.FLOAT64: InputKind.FLOAT,
    FeatureType.BOOL: InputKind.BOOL,
    FeatureType.TIMESTAMP: InputKind.TIMESTAMP,
}


def check_features(database: Engine, predictor: Predictor) -> None:
    """Refuse a predictor that names features which the newest registered views cannot give it.

    Raises:
        ConfigurationError: one sentence with every fault found.
    """
    with Session(database) as session:
        views = {view.name: view for view in load_views(session)}  # by name and version: the newest stays
        on_demand = {view.name: view for view in load_on_demand_views(session)}
    faults = list(feature_faults(predictor, list(views.values()), list(on_demand.values())))
    if faults:
        raise ConfigurationError(f"predictor {predictor.id}: {'; '.join(faults)}")


def feature_faults(
    predictor: Predictor, views: Sequence[FeatureView], on_demand_views: Sequence[OnDemandView]
) -> Iterator[str]:
    """What of the predictor's references is not declared, or has no key or input in a request; one version per view."""
    catalog, plan = ViewCatalog(views), OnDemandPlan(on_demand_views)
    entities = {use.entity for use in predictor.entities}
    needs = plan.needs([use.ref for use in predictor.features])
    for ref in needs.features:
        try:
            entity = catalog.resolve(ref).compiled.entity
        except ConfigurationError as error:
            yield str(error)
            continue
        if entity not in entities:
            yield f"feature {ref} is read by the key of entity {entity!r}, which the predictor does not declare"
    yield from _input_faults(predictor, needs.inputs, plan)


def _input_faults(predictor: Predictor, names: Iterable[str], plan: OnDemandPlan) -> Iterator[str]:
    declared = {field.name: field.kind for field in predictor.inputs}
    for name in names:
        wanted = KINDS[plan.inputs[name]]
        if declared.get(name) != wanted:
            has = declared.get(name, "none of that name")
            yield f"a feature is computed from the input {name!r} of kind {wanted}; the predictor has {has}"

"""What of a read is logged: worked out once for the references of a predictor, filled in for each sampled read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core_engine.contracts import FeatureRow, Scalar
from featurestore.catalog import CompiledView, Feature, ViewCatalog, entity_key_of
from featurestore.consistency.served_rows import ServedComputed, ServedRow, ServedView
from featurestore.definitions import FeatureView
from featurestore.on_demand.declaration import REQUEST, OnDemandView
from featurestore.on_demand.plan import OnDemandPlan

UNREADABLE: Final = "unreadable"

Groups = list[tuple[CompiledView, list[Feature]]]


@dataclass(frozen=True, slots=True)
class ComputedGroup:
    """The features of one on-demand view among some references, and what they need."""

    view: OnDemandView
    refs: tuple[str, ...]
    entities: tuple[str, ...]
    inputs: tuple[str, ...]
    uses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """Some references by the views that serve them."""

    stored: Groups
    computed: tuple[ComputedGroup, ...]


class Capture:
    """Knows the views, stored and on demand, that a reader serves."""

    def __init__(self, views: Sequence[FeatureView], on_demand_views: Sequence[OnDemandView] = ()) -> None:
        self._catalog = ViewCatalog(views)
        self._plan = OnDemandPlan(on_demand_views)
        self._versions = {view.name: view.version for view in views}
        self._versions |= {view.name: view.version for view in on_demand_views}
        self._on_demand = {view.name: view for view in on_demand_views}

    def asked(self, refs: Sequence[str]) -> Asked:
        """Raises `ConfigurationError` for what is not declared."""
        stored: list[str] = []
        computed: dict[str, list[str]] = {}
        for ref in refs:
            if ref in self._plan.steps:
                computed.setdefault(_view_of(ref), []).append(ref)
            elif _view_of(ref) != REQUEST:  # what the request brought, nobody stored or computed
                stored.append(ref)
        groups = tuple(self._computed(self._on_demand[name], tuple(of_view)) for name, of_view in computed.items())
        return Asked(self._catalog.by_view(stored), groups)

    def _computed(self, view: OnDemandView, refs: tuple[str, ...]) -> ComputedGroup:
        needs = self._plan.needs(refs)
        entities = dict.fromkeys(compiled.entity for compiled, _ in self._catalog.by_view(needs.features))
        used = dict.fromkeys(map(_view_of, (*needs.features, *needs.steps)))
        return ComputedGroup(
            view, refs, tuple(entities), needs.inputs, {name: self._versions[name] for name in sorted(used)}
        )


def served_row(
    asked: Asked, keys: Mapping[str, str], inputs: Mapping[str, Scalar], row: FeatureRow, at_us: int
) -> ServedRow:
    """What was served of `asked`, view by view."""
    stored = (_stored(compiled, features, keys, row, at_us) for compiled, features in asked.stored)
    return ServedRow(at_us, tuple(stored), tuple(_computed(group, keys, inputs, row) for group in asked.computed))


def _stored(
    compiled: CompiledView, features: Sequence[Feature], keys: Mapping[str, str], row: FeatureRow, at_us: int
) -> ServedView:
    served = [row.values[feature.ref] for feature in features]
    age_s = served[0].age_s  # of the stored row, so the same for all
    return ServedView(
        compiled.view.name,
        compiled.view.version,
        entity_key_of(compiled, keys),
        None if age_s is None else at_us - round(age_s * 1e6),  # exact: a double holds microseconds of 285 years
        tuple(feature.field.name for feature in features),
        tuple(value.state for value in served),
        tuple(value.value for value in served),
        _failure(row, [compiled.view.name]),
    )


def _computed(
    group: ComputedGroup, keys: Mapping[str, str], inputs: Mapping[str, Scalar], row: FeatureRow
) -> ServedComputed:
    served = [row.values[ref] for ref in group.refs]
    return ServedComputed(
        group.view.name,
        group.view.version,
        {entity: keys[entity] for entity in group.entities},
        {name: inputs[name] for name in group.inputs},
        dict(group.uses),
        tuple(ref.partition(".")[2] for ref in group.refs),
        tuple(value.state for value in served),
        tuple(value.value for value in served),
        _failure(row, group.uses),
    )


def _failure(row: FeatureRow, views: Iterable[str]) -> str | None:
    return row.failure or (UNREADABLE if any(name in row.unreadable for name in views) else None)


def _view_of(ref: str) -> str:
    """Of `view.feature` and of `view@entity.feature`."""
    return ref.partition(".")[0].partition("@")[0]

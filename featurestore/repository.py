"""Everything that a team declares for its features in one value: entities, views, on-demand views.

`headrace features apply` loads it by import path and registers it; `check_repository` says first whether it hangs
together, so that no request and no job meets a broken declaration. It reads no source and opens no store.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import msgspec

from core_engine.errors import ConfigurationError
from featurestore.catalog import VIEW_NAME, compile_view
from featurestore.definitions import Entity, FeatureView
from featurestore.on_demand.declaration import OnDemandView
from featurestore.on_demand.soundness import on_demand_faults


class FeatureRepository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of each view. The entity of a view, and every operand of a transform, is declared here too."""

    entities: tuple[Entity, ...]
    views: tuple[FeatureView, ...]
    on_demand_views: tuple[OnDemandView, ...] = ()


def load_repository(path: str) -> FeatureRepository:
    """The repository at `package.module:ATTRIBUTE`: a `FeatureRepository`, or a function without arguments giving one.

    Raises:
        ConfigurationError: nothing there, something else, or one that does not hang together (`check_repository`).
    """
    module_name, separator, attribute = path.partition(":")
    if not (module_name and separator and attribute):
        raise ConfigurationError(f"feature repository {path!r}: expected package.module:ATTRIBUTE")
    try:
        declared = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"feature repository {path!r} cannot be loaded: {error}") from error
    repository = declared() if callable(declared) else declared
    if not isinstance(repository, FeatureRepository):
        raise ConfigurationError(f"feature repository {path!r} is {type(repository).__name__}, no FeatureRepository")
    check_repository(repository)
    return repository


def check_repository(repository: FeatureRepository) -> None:
    """Refuse a repository whose parts do not fit together.

    Raises:
        ConfigurationError: one sentence with every fault found.
    """
    checks = (_names, _entities, _views, _joins)
    faults = [fault for check in checks for fault in check(repository)]
    faults += on_demand_faults(repository.views, repository.on_demand_views)
    if faults:
        raise ConfigurationError(f"feature repository: {'; '.join(faults)}")


def _names(repository: FeatureRepository) -> Iterable[str]:
    groups = {
        "entities": [entity.name for entity in repository.entities],
        "views": [*(view.name for view in repository.views), *(view.name for view in repository.on_demand_views)],
    }
    for group, names in groups.items():
        if len(set(names)) != len(names):
            yield f"the names of its {group} must be distinct, got {names}"


def _entities(repository: FeatureRepository) -> Iterable[str]:
    for entity in repository.entities:
        for name in (entity.name, *entity.join_keys):
            if not VIEW_NAME.fullmatch(name):
                yield f"entity {entity.name!r}: {name!r} is no name; use letters, digits and _"
        if not entity.join_keys or len(set(entity.join_keys)) != len(entity.join_keys):
            yield f"entity {entity.name!r}: its join keys must be distinct and one or more, got {entity.join_keys}"


def _views(repository: FeatureRepository) -> Iterable[str]:
    for view in repository.views:
        try:
            compile_view(view)
        except ConfigurationError as error:
            yield str(error)


def _joins(repository: FeatureRepository) -> Iterable[str]:
    """Each view is about a declared entity, and a window's key has as many parts as the entity's."""
    entities = {entity.name: entity for entity in repository.entities}
    for view in repository.views:
        entity = entities.get(view.entity)
        if entity is None:
            yield f"feature view {view.name}: entity {view.entity!r} is not declared; declared: {sorted(entities)}"
        elif view.window is not None and len(view.window.key) != len(entity.join_keys):
            yield (
                f"feature view {view.name}: the key of its window is {view.window.key}, but entity {entity.name!r}"
                f" is joined by {entity.join_keys}"
            )

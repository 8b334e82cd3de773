"""The views that a store or reader was built with, compiled once: names, positions, codecs, defaults.

Resolves a reference in one dictionary look-up and says by name what is not declared. It reads nothing.

A reference is `view.feature`, or `view@entity.feature`: the same feature read by the key of another entity than the
view's own. A flight joins the weather at both of its ends as `weather.wind` and `weather@dest.wind`; the spine's
columns and the predictor's `EntityUse` say what the key of `dest` is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from core_engine.errors import ConfigurationError, InvalidRequest
from featurestore.codec import RowCodec
from featurestore.defaults import served_default
from featurestore.definitions import FeatureView, Field
from featurestore.instants import duration_us
from featurestore.windows.plan import WindowPlan

VIEW_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class CompiledView:
    """A view with what its schema implies. `defaults` are in schema order, None where a field has none; `plan` is that
    of its window, where it has one. `entity` is the one by whose key it is read."""

    view: FeatureView
    entity: str
    codec: RowCodec
    ttl_us: int
    defaults: tuple[Any, ...]
    plan: WindowPlan | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """One resolved reference; `position` is its place in the view's schema."""

    ref: str
    compiled: CompiledView
    field: Field
    position: int


def compile_view(view: FeatureView) -> CompiledView:
    """Raises `ConfigurationError` for a name that no reference or key could carry, a TTL without end, a bad default."""
    for name in (view.name, *(field.name for field in view.schema)):
        if not VIEW_NAME.fullmatch(name):
            raise ConfigurationError(f"feature view {view.name}: {name!r} is no name; use letters, digits and _")
    if not math.isfinite(view.ttl_s):
        raise ConfigurationError(f"feature view {view.name}: ttl_s must be finite, got {view.ttl_s}")
    defaults = tuple(served_default(view, field) for field in view.schema)
    plan = WindowPlan(view) if view.window is not None else None
    return CompiledView(view, view.entity, RowCodec(view), duration_us(view.ttl_s), defaults, plan)


class ViewCatalog:
    """Views by name, one version of each, and their features by reference."""

    def __init__(self, views: Iterable[FeatureView]) -> None:
        self._views: dict[str, CompiledView] = {}
        self._features: dict[str, Feature] = {}
        for view in views:
            self._add(compile_view(view))

    def _add(self, compiled: CompiledView) -> None:
        view = compiled.view
        if view.name in self._views:
            raise ConfigurationError(f"feature view {view.name} is declared twice; a reader serves one version of it")
        self._views[view.name] = compiled
        for position, field in enumerate(view.schema):
            ref = f"{view.name}.{field.name}"
            self._features[ref] = Feature(ref, compiled, field, position)

    def resolve(self, ref: str) -> Feature:
        """Raises `ConfigurationError` for a view or feature that is not declared."""
        return self._features.get(ref) or self._by_other_entity(ref)

    def view(self, name: str) -> CompiledView:
        """Raises `ConfigurationError` for a view that is not declared."""
        compiled = self._views.get(name)
        if compiled is None:
            raise ConfigurationError(f"feature view {name!r} is not declared; declared: {sorted(self._views)}")
        return compiled

    def by_view(self, refs: Sequence[str]) -> list[tuple[CompiledView, list[Feature]]]:
        """The features of `refs` grouped by view and the entity that it is read by, in order of first mention."""
        groups: dict[tuple[str, str], tuple[CompiledView, list[Feature]]] = {}
        for ref in refs:
            feature = self.resolve(ref)
            compiled = feature.compiled
            groups.setdefault((compiled.view.name, compiled.entity), (compiled, []))[1].append(feature)
        return list(groups.values())

    def _by_other_entity(self, ref: str) -> Feature:
        """Resolved once and kept: references come from declarations, so there are few."""
        place, _, field = ref.rpartition(".")
        name, _, entity = place.partition("@")
        own = self._features.get(f"{name}.{field}")
        if own is None or not VIEW_NAME.fullmatch(entity):
            self._refuse(ref)
        feature = replace(own, ref=ref, compiled=replace(own.compiled, entity=entity))
        self._features[ref] = feature
        return feature

    def _refuse(self, ref: str) -> NoReturn:
        place, _, feature = ref.partition(".")
        self.view(place.partition("@")[0]).view.field(feature)
        raise ConfigurationError(f"feature {ref!r}: expected view.feature or view@entity.feature")


def entity_key_of(compiled: CompiledView, keys: Mapping[str, str]) -> str:
    """The key among `keys` of the entity that the view is read by. Raises `InvalidRequest`, naming it, without one."""
    return checked_key(compiled.view, keys.get(compiled.entity), compiled.entity)


def checked_key(view: FeatureView, key: object, entity: str = "") -> str:
    """`key` as the key of `entity`, by default the view's own; raises `InvalidRequest` for what can name no hash."""
    if isinstance(key, str) and key and _is_unicode(key):
        return key
    name = entity or view.entity
    expected = f"a non-empty string as the key of entity {name!r} for feature view {view.name}"
    raise InvalidRequest(f"entity {name} = {key!r}: expected {expected}", field=name, value=key, expected=expected)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can carry it
        return False
    return True

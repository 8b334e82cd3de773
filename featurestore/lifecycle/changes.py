"""What applying a repository would do to the register, shown first and then done: all of it, or nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError
from featurestore.definitions import Entity
from featurestore.lifecycle.differences import Difference
from featurestore.registry import (
    Declared,
    Status,
    entity_differences,
    find_record,
    load_on_demand_views,
    load_views,
    newest_version,
    register_entity,
    register_view,
    view_differences,
    views_of_entity,
)
from featurestore.repository import FeatureRepository


class Verdict(enum.StrEnum):
    NEW = "new"
    SAME = "same"
    UPDATED = "updated"  # an entity whose owner or description changed
    BACK = "back"  # a deleted version, declared again as it was
    REFUSED = "refused"
    KEPT = "kept"  # registered, and not declared here


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one declaration. `advice` says of a refused one what to do instead."""

    kind: str  # entity, view, on-demand view
    name: str
    version: int | None
    verdict: Verdict
    differences: tuple[Difference, ...] = ()
    advice: str | None = None

    @property
    def what(self) -> str:
        return f"{self.kind} {self.name}" + ("" if self.version is None else f":{self.version}")


def changes(session: Session, repository: FeatureRepository) -> list[Change]:
    """Every declaration of `repository` in its order, then every registered version that it does not declare."""
    made = [_of_entity(session, entity) for entity in repository.entities]
    made += [_of_view(session, "view", view) for view in repository.views]
    made += [_of_view(session, "on-demand view", view) for view in repository.on_demand_views]
    return [*made, *_kept(session, repository)]


def apply(session: Session, repository: FeatureRepository) -> list[Change]:
    """Register all of `repository`; the caller commits. Applying it again changes nothing; no watermark is touched.

    Raises:
        ConfigurationError: some declarations are refused; the sentence has every one, and nothing is registered.
    """
    made = changes(session, repository)
    refused = [change for change in made if change.verdict is Verdict.REFUSED]
    if refused:
        raise ConfigurationError("; ".join(refusal(change) for change in refused))
    for entity in repository.entities:
        register_entity(session, entity)
    views: tuple[Declared, ...] = (*repository.views, *repository.on_demand_views)
    for view in views:
        register_view(session, view)
    return made


def refusal(change: Change) -> str:
    """Why a change is refused, in one sentence: the fields that differ, and what to do."""
    fields = ", ".join(map(str, change.differences))
    return f"{change.what} is frozen" + (f" ({fields})" if fields else "") + f": {change.advice}"


def _of_entity(session: Session, entity: Entity) -> Change:
    found = entity_differences(session, entity)
    if found is None:
        return Change("entity", entity.name, None, Verdict.NEW)
    if not found:
        return Change("entity", entity.name, None, Verdict.SAME)
    views = views_of_entity(session, entity.name)
    if views and any(difference.path.startswith("join_keys") for difference in found):
        advice = f"the rows of {', '.join(views)} have its keys; declare an entity of another name"
        return Change("entity", entity.name, None, Verdict.REFUSED, found, advice)
    return Change("entity", entity.name, None, Verdict.UPDATED, found)


def _of_view(session: Session, kind: str, view: Declared) -> Change:
    held = find_record(session, view)
    if held is None:
        return Change(kind, view.name, view.version, Verdict.NEW)
    found = tuple(view_differences(held, view))
    if found:
        advice = f"declare version {newest_version(session, type(view), view.name) + 1}"
        return Change(kind, view.name, view.version, Verdict.REFUSED, found, advice)
    if held.status == Status.DELETING:
        advice = f"it is being deleted; finish that: headrace features delete {view.name} --version {view.version}"
        return Change(kind, view.name, view.version, Verdict.REFUSED, (), advice)
    return Change(kind, view.name, view.version, Verdict.SAME if held.status == Status.REGISTERED else Verdict.BACK)


def _kept(session: Session, repository: FeatureRepository) -> Iterator[Change]:
    groups: list[tuple[str, Sequence[Declared], Sequence[Declared]]] = [
        ("view", load_views(session), repository.views),
        ("on-demand view", load_on_demand_views(session), repository.on_demand_views),
    ]
    for kind, registered, declared in groups:
        here = {(view.name, view.version) for view in declared}
        for view in registered:
            if (view.name, view.version) not in here:
                yield Change(kind, view.name, view.version, Verdict.KEPT)

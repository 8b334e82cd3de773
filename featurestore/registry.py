"""The register of features: entities, and each version of a view or on-demand view, frozen once it is registered.

A composition root registers what it is about to serve, `headrace features apply` what a team declares; anything else
may load what is there. A version's number means one declaration for ever, even after its deletion: rows of it may be in
logs, training tables and running processes.
"""

from __future__ import annotations

import enum
import hashlib
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, UnknownName
from featurestore.definitions import Entity, FeatureView
from featurestore.lifecycle.differences import Difference, differences
from featurestore.on_demand.declaration import OnDemandView
from featurestore.tables import Base, EntityRecord, FeatureViewRecord, OnDemandViewRecord, VersionRecord

metadata = Base.metadata
Declared: TypeAlias = FeatureView | OnDemandView
AnyView = TypeVar("AnyView", bound=FeatureView | OnDemandView)

_RECORDS: Final[dict[type[msgspec.Struct], type[VersionRecord]]] = {
    FeatureView: FeatureViewRecord,
    OnDemandView: OnDemandViewRecord,
}
_WORDS: Final[dict[type[msgspec.Struct], str]] = {FeatureView: "feature view", OnDemandView: "on-demand view"}


class Status(enum.StrEnum):
    REGISTERED = "registered"
    DELETING = "deleting"  # nothing is served from it; some of its keys may be left
    DELETED = "deleted"


def fingerprint(view: Declared) -> str:
    """SHA-256 of the declaration: equal for equal declarations, in every process."""
    return hashlib.sha256(msgspec.json.encode(view)).hexdigest()


def register_view(session: Session, view: Declared) -> None:
    """Registers `view`, or finds it registered already; a deleted one comes back. The caller commits.

    Raises:
        ConfigurationError: this name and version was registered with another declaration, whose differences are named.
            A view is frozen once online: rows of the old declaration may be stored, so a change is a new version. Or
            its deletion is not finished.
    """
    record = _record(view)
    # Compared as declarations, not by the stored fingerprint: a later release may add a field with a default.
    held = session.get(type(record), (view.name, view.version)) or _insert(session, record)
    where = f"{_WORDS[type(view)]} {view.name} version {view.version}"
    changes = [str(change) for change in view_differences(held, view)]
    if changes:
        newest = newest_version(session, type(view), view.name)
        raise ConfigurationError(
            f"{where} is registered with another declaration ({'; '.join(changes)}); declare version {newest + 1}"
        )
    if held.status == Status.DELETING:
        raise ConfigurationError(f"{where} is being deleted; finish that first (headrace features delete)")
    held.status = Status.REGISTERED


def register_entity(session: Session, entity: Entity) -> None:
    """Registers `entity` or takes over its new owner and description; the caller commits.

    Raises:
        ConfigurationError: other join keys, while views of it are registered: their rows have keys of the old ones.
    """
    found = entity_differences(session, entity)
    if found is not None and not found:
        return
    views = views_of_entity(session, entity.name)
    keys = [str(difference) for difference in found or () if difference.path.startswith("join_keys")]
    if keys and views:
        raise ConfigurationError(
            f"entity {entity.name} is registered with other join keys ({'; '.join(keys)}), and the rows of"
            f" {', '.join(views)} have the old ones; declare an entity of another name"
        )
    record = EntityRecord(name=entity.name, declaration=_json(entity), updated_at=datetime.now(UTC))
    held = session.get(EntityRecord, entity.name)
    if held is not None:
        held.declaration, held.updated_at = record.declaration, record.updated_at
        return
    try:
        with session.begin_nested():
            session.add(record)
    except IntegrityError:  # another process made it between our look and our insert
        register_entity(session, entity)


def entity_differences(session: Session, entity: Entity) -> tuple[Difference, ...] | None:
    """What `entity` changes in the one that is registered under its name; None where none is."""
    held = session.get(EntityRecord, entity.name)
    return None if held is None else tuple(differences(_json(msgspec.convert(held.declaration, Entity)), _json(entity)))


def views_of_entity(session: Session, name: str) -> list[str]:
    """The registered view versions whose rows have keys of this entity, as `name:version`."""
    return [f"{view.name}:{view.version}" for view in load_views(session) if view.entity == name]


def load_views(session: Session, *, with_deleted: bool = False) -> list[FeatureView]:
    """Every registered view, by name and version. Raises `ConfigurationError` for one that this release cannot read."""
    return _load(session, FeatureView, with_deleted=with_deleted)


def load_on_demand_views(session: Session, *, with_deleted: bool = False) -> list[OnDemandView]:
    """As `load_views`."""
    return _load(session, OnDemandView, with_deleted=with_deleted)


def load_entities(session: Session) -> list[Entity]:
    records = session.scalars(select(EntityRecord).order_by(EntityRecord.name))
    return [msgspec.convert(record.declaration, Entity) for record in records]


def find_view(session: Session, name: str, version: int | None = None) -> FeatureView:
    """The registered `version` of a view, or its newest. Raises `UnknownName`, which lists what is registered."""
    views = load_views(session)
    found = [view for view in views if view.name == name and version in (None, view.version)]
    if found:
        return found[-1]
    known = ", ".join(f"{view.name}:{view.version}" for view in views) or "none"
    asked = name if version is None else f"{name} version {version}"
    raise UnknownName(
        f"feature view {asked} is unknown; registered: {known}", field="view", value=asked, expected=f"one of: {known}"
    )


def newest_version(session: Session, kind: type[Declared], name: str) -> int:
    """The highest number that was ever registered under `name`, deleted ones included; 0 where there is none."""
    record = _RECORDS[kind]
    return session.scalar(select(func.max(record.version)).where(record.name == name)) or 0


def find_record(session: Session, view: Declared) -> VersionRecord | None:
    """What the register holds under the name and version of `view`, deleted or not."""
    return session.get(_RECORDS[type(view)], (view.name, view.version))


def view_differences(held: VersionRecord, view: Declared) -> list[Difference]:
    """What `view` changes in the declaration that is registered."""
    registered = _declared(held, type(view))
    if registered == view:
        return []
    return list(differences(_json(registered), _json(view)))


def unfinished_deletions(session: Session) -> list[FeatureView]:
    """The view versions whose deletion began and did not end."""
    rows = select(FeatureViewRecord).where(FeatureViewRecord.status == Status.DELETING)
    return [_declared(row, FeatureView) for row in session.scalars(rows)]


def set_status(session: Session, name: str, version: int, status: Status, kind: type[Declared] = FeatureView) -> None:
    """Note where a version is in its life; the caller commits. Raises `UnknownName` where it was never registered."""
    record = session.get(_RECORDS[kind], (name, version))
    if record is None:
        find_view(session, name, version)
    else:
        record.status = status


def _record(view: Declared) -> VersionRecord:
    return _RECORDS[type(view)](
        name=view.name,
        version=view.version,
        fingerprint=fingerprint(view),
        declaration=_json(view),
        status=Status.REGISTERED,
        created_at=datetime.now(UTC),
    )


def _json(declared: Declared | Entity) -> dict[str, Any]:
    """A declaration in JSON's own types, as the table holds it."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(declared))
    return fields


def _insert(session: Session, record: VersionRecord) -> VersionRecord:
    """The record now held: ours, or that of a process which registered the view between our look and our insert."""
    try:
        with session.begin_nested():
            session.add(record)
    except IntegrityError:
        return session.get_one(type(record), (record.name, record.version))
    return record


def _load(session: Session, kind: type[AnyView], *, with_deleted: bool = False) -> list[AnyView]:
    record = _RECORDS[kind]
    rows = select(record).order_by(record.name, record.version)
    if not with_deleted:
        rows = rows.where(record.status == Status.REGISTERED)
    return [_declared(row, kind) for row in session.scalars(rows)]


def _declared(record: VersionRecord, kind: type[AnyView]) -> AnyView:
    try:
        return msgspec.convert(record.declaration, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{_WORDS[kind]} {record.name} version {record.version} in the registry cannot be read: {error}; it was"
            " registered by another release: upgrade this one"
        ) from None

"""The register of feature views: each version's declaration, frozen the moment it is registered.

A composition root registers what it is about to serve; anything else may load what is there. One small table; its
migration is in `headrace/migrations`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import JSON, DateTime, String, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureView


class Base(DeclarativeBase):
    pass


metadata = Base.metadata


class FeatureViewRecord(Base):
    """One version of a view as it was declared."""

    __tablename__ = "feature_views"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    fingerprint: Mapped[str] = mapped_column(String(64))
    declaration: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


def fingerprint(view: FeatureView) -> str:
    """SHA-256 of the declaration: equal for equal declarations, in every process."""
    return hashlib.sha256(msgspec.json.encode(view)).hexdigest()


def register_view(session: Session, view: FeatureView) -> None:
    """Registers `view`, or finds it registered already; the caller commits.

    Raises:
        ConfigurationError: this name and version was registered with another declaration. A view is frozen once
            online: rows of the old declaration may be stored, so a change is a new version.
    """
    record = FeatureViewRecord(
        name=view.name,
        version=view.version,
        fingerprint=fingerprint(view),
        declaration=msgspec.json.decode(msgspec.json.encode(view)),
        created_at=datetime.now(UTC),
    )
    held = session.get(FeatureViewRecord, (view.name, view.version)) or _insert(session, record)
    # Compared as declarations, not by the stored fingerprint: a later release may add a field with a default.
    if msgspec.convert(held.declaration, FeatureView) != view:
        raise ConfigurationError(
            f"feature view {view.name} version {view.version} is registered with another declaration"
            f" ({_changed(held.declaration, record.declaration)}); declare version {view.version + 1}"
        )


def load_views(session: Session) -> list[FeatureView]:
    """Every registered view, by name and version."""
    records = session.scalars(select(FeatureViewRecord).order_by(FeatureViewRecord.name, FeatureViewRecord.version))
    return [msgspec.convert(record.declaration, FeatureView) for record in records]


def _insert(session: Session, record: FeatureViewRecord) -> FeatureViewRecord:
    """The record now held: ours, or that of a process which registered the view between our look and our insert."""
    try:
        with session.begin_nested():
            session.add(record)
    except IntegrityError:
        return session.get_one(FeatureViewRecord, (record.name, record.version))
    return record


def _changed(held: dict[str, Any], declared: dict[str, Any]) -> str:
    return ", ".join(sorted(key for key in declared if held.get(key) != declared[key]))

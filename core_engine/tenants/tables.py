"""The two tables of tenants. Written by the command line; doors read them through `directory`.

A tenant needs no row of its own: it is there as soon as it has a key or a quota.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Double, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core_engine.sql_types import UtcDateTime


class Base(DeclarativeBase):
    """Metadata of keys and quotas."""


class ApiKey(Base):
    """One key: its public prefix and the SHA-256 of the whole, in hex. The key itself is nowhere."""

    __tablename__ = "api_keys"

    prefix: Mapped[str] = mapped_column(String(12), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class TenantQuota(Base):
    """A tenant's own limits; null: the default of the settings."""

    __tablename__ = "tenant_quotas"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    requests_per_s: Mapped[float | None] = mapped_column(Double)
    tokens_per_minute: Mapped[int | None]
    streams: Mapped[int | None]
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)

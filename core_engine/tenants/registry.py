"""Keys and quotas in SQL. The command line writes them; doors read them through `directory`, never in a request."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from core_engine.errors import InvalidRequest, UnknownName
from core_engine.tenants.keys import new_key
from core_engine.tenants.quotas import Quota
from core_engine.tenants.tables import ApiKey, TenantQuota
from core_engine.tenants.view import StoredKey, TenantView

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _utc_now() -> datetime:
    return datetime.now(UTC)


class TenantRegistry:
    """Synchronous; safe to use from several threads and processes."""

    def __init__(self, engine: Engine, now: Callable[[], datetime] = _utc_now) -> None:
        self._engine = engine
        self._now = now

    def create_key(self, tenant: str, expires_at: datetime | None = None) -> str:
        """A new key of `tenant`, which nobody can read again.

        Raises:
            InvalidRequest: a name that is none, or an expiry that is over.
        """
        check_tenant(tenant)
        now = self._now()
        if expires_at is not None and expires_at <= now:
            message = f"expires = {expires_at.isoformat()} is not after {now.isoformat()}"
            raise InvalidRequest(message, field="expires", value=expires_at.isoformat(), expected="an instant to come")
        made = new_key()
        row = ApiKey(prefix=made.prefix, tenant=tenant, digest=made.digest, created_at=now, expires_at=expires_at)
        with Session(self._engine) as session, session.begin():
            session.add(row)
        return made.key

    def revoke_key(self, prefix: str) -> StoredKey:
        """End a key; again, it stays as it is.

        Raises:
            UnknownName: no key has this prefix; the message lists those that have.
        """
        with Session(self._engine) as session, session.begin():
            row = session.get(ApiKey, prefix)
            if row is None:
                known = ", ".join(session.scalars(select(ApiKey.prefix).order_by(ApiKey.created_at))) or "none"
                message = f"key {reprlib.repr(prefix)} is unknown; known prefixes: {known}"
                raise UnknownName(message, field="prefix", value=prefix, expected=f"one of: {known}")
            row.revoked_at = row.revoked_at or self._now()
            return _stored(row)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """Replace the limits of `tenant`; what is None follows the settings' default.

        Raises:
            InvalidRequest: a name that is none, or a limit that is not above 0.
        """
        check_tenant(tenant)
        limits = {
            "requests_per_s": quota.requests_per_s,
            "tokens_per_minute": quota.tokens_per_minute,
            "streams": quota.streams,
        }
        for name, limit in limits.items():
            if limit is not None and not 0 < limit < 2**31:
                message = f"{name} = {limit}: expected a number above 0 and below 2^31"
                raise InvalidRequest(message, field=name, value=limit, expected="a number above 0 and below 2^31")
        with Session(self._engine) as session, session.begin():
            session.merge(TenantQuota(tenant=tenant, updated_at=self._now(), **limits))

    def view(self) -> TenantView:
        """What the tables hold now."""
        with Session(self._engine) as session:
            keys = {row.prefix: _stored(row) for row in session.scalars(select(ApiKey).order_by(ApiKey.created_at))}
            quotas = {row.tenant: _quota(row) for row in session.scalars(select(TenantQuota))}
        return TenantView(MappingProxyType(keys), MappingProxyType(quotas))


def check_tenant(name: str) -> None:
    """Raises `InvalidRequest` for what cannot name a tenant: names are labels of metrics and columns of reports."""
    if not TENANT.fullmatch(name):
        expected = "1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit"
        message = f"tenant = {reprlib.repr(name)}: expected {expected}"
        raise InvalidRequest(message, field="tenant", value=name, expected=expected)


def _stored(row: ApiKey) -> StoredKey:
    return StoredKey(row.prefix, row.tenant, row.digest, row.created_at, row.expires_at, row.revoked_at)


def _quota(row: TenantQuota) -> Quota:
    return Quota(row.requests_per_s, row.tokens_per_minute, row.streams)

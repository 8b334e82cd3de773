"""Every key and quota at one instant, in memory: who a key belongs to, decided without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from core_engine.errors import Forbidden, Unauthenticated
from core_engine.tenants.keys import prefix_of, proves
from core_engine.tenants.quotas import Quota

ANONYMOUS = "local"  # who needs no key, and sends none
WRONG = "the API key is not one of this platform's"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What is known of a key. The instants are aware; None: never."""

    prefix: str
    tenant: str
    digest: str = field(repr=False)
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_usable(self, now: datetime) -> bool:
        return self.revoked_at is None and not self.is_expired(now)

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class TenantView:
    """Keys by prefix, quotas by tenant."""

    keys: Mapping[str, StoredKey] = field(default_factory=lambda: MappingProxyType({}))
    quotas: Mapping[str, Quota] = field(default_factory=lambda: MappingProxyType({}))

    def tenant_of(self, key: str, now: datetime) -> str:
        """The tenant that `key` belongs to. Only who holds the whole key is told that it was revoked.

        Raises:
            Unauthenticated: no key of ours, or not the one with this prefix.
            Forbidden: revoked, or expired.
        """
        prefix = prefix_of(key)
        stored = None if prefix is None else self.keys.get(prefix)
        if stored is None or not proves(key, stored.digest):
            raise Unauthenticated(WRONG)
        if stored.revoked_at is not None:
            raise Forbidden(f"the API key {stored.prefix} was revoked")
        if stored.is_expired(now):
            raise Forbidden(f"the API key {stored.prefix} has expired")
        return stored.tenant

    def has_usable_key(self, now: datetime) -> bool:
        return any(key.is_usable(now) for key in self.keys.values())

    @property
    def tenants(self) -> set[str]:
        """Everyone who has a key or a quota."""
        return {key.tenant for key in self.keys.values()} | set(self.quotas)

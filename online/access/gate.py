"""Who may call this door: an API key to its tenant, and the quota that the tenant keeps to. Memory only; no I/O.

`Authorization: Bearer` everywhere; `X-Api-Key` on our own routes too. Where no key is needed, whoever sends none is the
tenant `local`, and a credential that is not of our form counts as none (OpenAI's client insists on sending something).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.datastructures import Headers

from core_engine.errors import Forbidden, Unauthenticated
from core_engine.tenants.keys import prefix_of
from core_engine.tenants.quotas import Quota, Quotas
from core_engine.tenants.view import ANONYMOUS, TenantView
from online.problems import is_openai

METRICS = "/metrics"
OPERATOR = "operator"  # the tenant that may read all tenants' metrics


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Gate:
    """`view` gives the keys and quotas as they are known now. By default everybody may come, without limits."""

    quotas: Quotas = field(default_factory=lambda: Quotas(Quota()))
    view: Callable[[], TenantView] = TenantView
    needs_key: bool = False
    now: Callable[[], datetime] = _utc_now

    def tenant_of(self, headers: Headers, path: str) -> str:
        """The tenant that asks for `path`.

        Raises:
            Unauthenticated: a key is needed and none is there, or it is wrong.
            Forbidden: the key was revoked or has expired, or its tenant may not see this page.
        """
        key = given_key(headers, path)
        if key is None and self.needs_key:
            raise Unauthenticated("no API key was sent; send it as Authorization: Bearer <key>")
        if key is None or (not self.needs_key and prefix_of(key) is None):
            return ANONYMOUS
        tenant = self.view().tenant_of(key, self.now())
        if path == METRICS and self.needs_key and tenant != OPERATOR:
            raise Forbidden(f"{METRICS} shows every tenant; it is for keys of the tenant {OPERATOR!r}")
        return tenant


def given_key(headers: Headers, path: str) -> str | None:
    """The credential that was sent, whatever it is; None where there is none."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return None if is_openai(path) else headers.get("x-api-key")

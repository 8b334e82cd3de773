"""Which credential counts where, and whose it is."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from core_engine.errors import Forbidden, Unauthenticated
from core_engine.tenants.keys import new_key
from core_engine.tenants.view import StoredKey, TenantView
from online.access.gate import OPERATOR, Gate, given_key

OURS, THEIRS = "/v1/predict/delay", "/v1/chat/completions"
NOW = datetime(2026, 5, 4, tzinfo=UTC)
KEYS = {tenant: new_key() for tenant in ("acme", OPERATOR)}
VIEW = TenantView(
    MappingProxyType({made.prefix: StoredKey(made.prefix, name, made.digest, NOW) for name, made in KEYS.items()})
)


def tenant_of(path: str, *, needs_key: bool, **headers: str) -> str:
    gate = Gate(view=lambda: VIEW, needs_key=needs_key, now=lambda: NOW)
    return gate.tenant_of(Headers({name.replace("_", "-"): value for name, value in headers.items()}), path)


@pytest.mark.parametrize("path", [OURS, THEIRS, "/v1/models", "/nothing"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_a_bearer_key_counts_on_every_route(path: str, scheme: str) -> None:
    assert tenant_of(path, needs_key=True, authorization=f"{scheme} {KEYS['acme'].key}") == "acme"


def test_x_api_key_counts_on_our_routes_only() -> None:
    assert tenant_of(OURS, needs_key=True, x_api_key=KEYS["acme"].key) == "acme"
    with pytest.raises(Unauthenticated, match="no API key was sent"):
        tenant_of(THEIRS, needs_key=True, x_api_key=KEYS["acme"].key)


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "hr_0_x"])
def test_what_is_no_bearer_is_no_key(authorization: str) -> None:
    with pytest.raises(Unauthenticated, match="no API key was sent"):
        tenant_of(OURS, needs_key=True, authorization=authorization)
    assert tenant_of(OURS, needs_key=False, authorization=authorization) == "local"


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100))
def test_a_credential_that_is_not_of_our_form_counts_only_where_a_key_is_needed(credential: str) -> None:
    assert tenant_of(THEIRS, needs_key=False, authorization=f"Bearer {credential}") == "local"
    with pytest.raises(Unauthenticated):
        tenant_of(THEIRS, needs_key=True, authorization=f"Bearer {credential}")


def test_a_key_of_ours_is_checked_even_where_none_is_needed() -> None:
    assert tenant_of(OURS, needs_key=False, authorization=f"Bearer {KEYS['acme'].key}") == "acme"
    with pytest.raises(Unauthenticated, match="not one of this platform's"):
        tenant_of(OURS, needs_key=False, authorization=f"Bearer {new_key().key}")


def test_metrics_are_the_operator_s_where_keys_are_needed() -> None:
    assert tenant_of("/metrics", needs_key=True, authorization=f"Bearer {KEYS[OPERATOR].key}") == OPERATOR
    with pytest.raises(Forbidden, match="keys of the tenant 'operator'"):
        tenant_of("/metrics", needs_key=True, authorization=f"Bearer {KEYS['acme'].key}")
    assert tenant_of("/metrics", needs_key=False) == "local"


def test_by_default_everybody_is_local() -> None:
    assert Gate().tenant_of(Headers(), OURS) == "local"
    with pytest.raises(Unauthenticated):
        Gate().tenant_of(Headers({"authorization": f"Bearer {KEYS['acme'].key}"}), OURS)


def test_of_two_credentials_the_bearer_is_meant() -> None:
    both = Headers({"authorization": "Bearer one", "x-api-key": "two"})
    assert given_key(both, OURS) == "one"

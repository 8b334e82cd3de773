"""`headrace keys` and `headrace tenants`: who may call the door, and how much. Doors follow within a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from core_engine.tenants.registry import TenantRegistry
    from core_engine.tenants.view import StoredKey

keys = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")
tenants = typer.Typer(no_args_is_help=True, help="Set and list what each tenant may take.")

Tenant: TypeAlias = Annotated[str, typer.Option(help="Whose key.")]


@keys.command("create")
def create(
    tenant: Tenant,
    expires: Annotated[str | None, typer.Option(help="A day (UTC) or an instant with its offset.")] = None,
) -> None:
    """Make a key and print it, this once: only its digest is kept."""
    from headrace.cost import instant

    with _registry() as registry:
        key = registry.create_key(tenant, None if expires is None else instant(expires, "--expires"))
    typer.echo(key)
    typer.echo("Keep it now: it cannot be shown again.", err=True)


@keys.command("list")
def list_keys() -> None:
    """Every key: prefix, tenant, when it was made, and whether it may be used."""
    with _registry() as registry:
        found = registry.view().keys.values()
    for key in found:
        typer.echo("\t".join((key.prefix, key.tenant, key.created_at.isoformat(timespec="seconds"), _status(key))))


@keys.command("revoke")
def revoke(prefix: Annotated[str, typer.Argument(help="The twelve characters after hr_.")]) -> None:
    """End a key. Doors refuse it within a second."""
    with _registry() as registry:
        key = registry.revoke_key(prefix)
    typer.echo(f"{key.prefix}\t{key.tenant}\t{_status(key)}")


@tenants.command("set")
def set_quota(
    tenant: Annotated[str, typer.Argument(help="Whose quota.")],
    requests_per_s: Annotated[float | None, typer.Option(help="Requests per second; a second's worth at once.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Of generations: prompt and completion.")] = None,
    streams: Annotated[int | None, typer.Option(help="Generations at once.")] = None,
) -> None:
    """Replace a tenant's quota. A limit that is not named follows the settings' default from now on."""
    from core_engine.tenants.quotas import Quota

    with _registry() as registry:
        registry.set_quota(tenant, Quota(requests_per_s, tokens_per_minute, streams))
    typer.echo(f"{tenant}: set")


@tenants.command("list")
def list_tenants() -> None:
    """Every tenant with the limits in force: requests per second, tokens per minute, streams, keys in use."""
    from core_engine.settings import load_settings
    from core_engine.tenants.quotas import Quota
    from headrace.door_access import default_quota

    with _registry() as registry:
        view = registry.view()
    default, now = default_quota(load_settings().quotas), datetime.now(UTC)
    for tenant in sorted(view.tenants):
        quota = view.quotas.get(tenant, Quota()).over(default)
        num_keys = sum(key.tenant == tenant and key.is_usable(now) for key in view.keys.values())
        limits = (quota.requests_per_s, quota.tokens_per_minute, quota.streams)
        shown = ("no limit" if limit is None else f"{limit:g}" for limit in limits)
        typer.echo("\t".join((tenant, *shown, f"{num_keys} keys")))


def _status(key: StoredKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at.isoformat(timespec='seconds')}"
    if key.expires_at is None:
        return "usable"
    word = "expired" if key.is_expired(datetime.now(UTC)) else "expires"
    return f"{word} {key.expires_at.isoformat(timespec='seconds')}"


@contextmanager
def _registry() -> Iterator[TenantRegistry]:
    from core_engine.predictors.tables import open_database
    from core_engine.settings import load_settings
    from core_engine.tenants.registry import TenantRegistry
    from headrace.migrations import upgrade

    url = load_settings().database_url
    upgrade(url)
    database = open_database(url)
    try:
        yield TenantRegistry(database)
    finally:
        database.dispose()

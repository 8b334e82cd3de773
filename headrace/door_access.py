"""Who may call the door that starts here: keys and quotas from the database and the settings, and whether a key is
needed. A door that nobody could call, or that everybody could without anyone having said so, does not start. Each of
several workers lets in its own share, without asking the others."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine

from core_engine.errors import ConfigurationError
from core_engine.settings import HttpSettings, QuotaSettings, Settings
from core_engine.tenants.directory import Directory
from core_engine.tenants.quotas import Quota, Quotas
from core_engine.tenants.registry import TenantRegistry
from online.access.gate import Gate


@dataclass(frozen=True, slots=True)
class Access:
    """The gate that requests pass, and the directory that is to be refreshed behind it."""

    gate: Gate
    directory: Directory


def access(settings: Settings, database: Engine, *, is_loopback: bool) -> Access:
    """Keys and quotas as the database has them now.

    Raises:
        ConfigurationError: requests need a key, and there is none that could be used.
    """
    quotas = Quotas(default_quota(settings.quotas), share=1 / settings.http.workers)
    directory = Directory(TenantRegistry(database), quotas)
    needs_key = key_is_needed(settings.http, is_loopback=is_loopback)
    if not directory.load().has_usable_key(datetime.now(UTC)) and needs_key:
        raise ConfigurationError(
            f"a request to {settings.http.host}:{settings.http.port} needs an API key, and no usable one exists: "
            "run headrace keys create --tenant NAME, or set HEADRACE_HTTP__ALLOW_ANONYMOUS=always"
        )
    return Access(Gate(quotas, lambda: directory.view, needs_key=needs_key), directory)


def worker_share(http: HttpSettings) -> HttpSettings:
    """The limits of one worker: those of the whole door, shared out evenly and rounded down."""
    shares = {name: getattr(http, name) // http.workers for name in ("max_streams", "max_connections")}
    return http.model_copy(update=shares)


def key_is_needed(http: HttpSettings, *, is_loopback: bool) -> bool:
    return http.allow_anonymous == "never" or (http.allow_anonymous == "loopback" and not is_loopback)


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach what `listener` is bound to."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def default_quota(quotas: QuotaSettings) -> Quota:
    return Quota(quotas.requests_per_s, quotas.tokens_per_minute, quotas.streams)

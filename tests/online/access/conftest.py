"""The door with a gate: keys and quotas in a database of their own, as a composition root would wire them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from starlette.types import ASGIApp

from core_engine.metrics import Metrics
from core_engine.predictors.tables import open_database
from core_engine.tenants.directory import Directory
from core_engine.tenants.quotas import Quota, Quotas
from core_engine.tenants.registry import TenantRegistry
from core_engine.tenants.tables import Base
from online.access.gate import Gate
from online.app import create_app
from online.services import Services
from tests.core_engine.predictors.doubles import INPUTS
from tests.online.conftest import DoorUnderTest

PREDICT = "/v1/predict/delay"
CHAT = "/v1/chat/completions"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Guarded:
    """A door of its own over the parts of `door`; its rates run by `clock`."""

    door: DoorUnderTest
    app: ASGIApp
    services: Services
    registry: TenantRegistry
    directory: Directory
    clock: Clock
    http: httpx.AsyncClient

    async def key(self, tenant: str = "acme") -> dict[str, str]:
        """Headers with a new key, which the door knows."""
        made = self.registry.create_key(tenant)
        await self.directory.refresh()
        return {"Authorization": f"Bearer {made}"}

    async def predict(self, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.http.post(PREDICT, json={"inputs": INPUTS}, headers=headers)

    async def chat(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Say something."}]
        return await self.http.post(CHAT, json={"model": "tiny", "messages": messages} | body, headers=headers)

    def count(self, tenant: str, outcome: str) -> float:
        labels = {"tenant": tenant, "outcome": outcome}
        return self.services.metrics.registry.get_sample_value("headrace_access_total", labels) or 0.0


class Guard(Protocol):
    def __call__(
        self, *, needs_key: bool = True, default: Quota = ..., **http: Any
    ) -> AbstractAsyncContextManager[Guarded]: ...


@pytest.fixture
def guard(door: DoorUnderTest, tmp_path: Path) -> Guard:
    """Makes a guarded door, as an async context: `default` is every tenant's quota, the rest are HTTP settings."""

    @asynccontextmanager
    async def make(*, needs_key: bool = True, default: Quota = Quota(), **http: Any) -> AsyncIterator[Guarded]:  # noqa: B008
        database = open_database(f"sqlite:///{tmp_path / 'tenants.db'}")
        Base.metadata.create_all(database)
        clock = Clock()
        quotas = Quotas(default, clock=clock)
        registry = TenantRegistry(database)
        directory = Directory(registry, quotas)
        gate = Gate(quotas, lambda: directory.view, needs_key=needs_key)
        settings = door.services.http.model_copy(update=http)
        services = replace(door.services, metrics=Metrics(), gate=gate, http=settings)
        app = create_app(services)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as client:
            yield Guarded(door, app, services, registry, directory, clock, client)
        database.dispose()

    return make

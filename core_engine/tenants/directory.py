"""What a door knows of keys and quotas: a view in memory, refreshed in the background. No request waits for SQL.

A key that is revoked stops within one refresh, in every worker. A lost database keeps the last view: whom it let in
before it still lets in, and a revocation cannot be made meanwhile either.
"""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy.exc import SQLAlchemyError

from core_engine.tenants.quotas import Quotas
from core_engine.tenants.registry import TenantRegistry
from core_engine.tenants.view import ANONYMOUS, TenantView

log = structlog.get_logger(__name__)


class Directory:
    """One per process; its owner calls `refresh`. `quotas` are told of each view."""

    def __init__(self, registry: TenantRegistry, quotas: Quotas) -> None:
        self._registry = registry
        self._quotas = quotas
        self.view = TenantView()
        self.failure: str | None = None  # why the last refresh failed; None while the view is current

    def load(self) -> TenantView:
        """Read now, in this thread. Raises `SQLAlchemyError`."""
        self._take(self._registry.view())
        return self.view

    async def refresh(self) -> None:
        """Read in a thread. A failure is remembered and logged once, never raised."""
        try:
            view = await asyncio.to_thread(self._registry.view)
        except SQLAlchemyError as error:
            if self.failure is None:
                log.warning("tenants_stale", error=str(error))
            self.failure = str(error)
        else:
            if self.failure is not None:
                log.info("tenants_recovered")
            self.failure = None
            self._take(view)

    def _take(self, view: TenantView) -> None:
        self.view = view
        self._quotas.set(view.quotas, is_shared=not view.tenants <= {ANONYMOUS})

"""What a door knows of the registry: a view in memory, refreshed in the background, so that no request waits for SQL.

A new version or alias takes effect within one refresh, without a restart. A lost database keeps the last view.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from sqlalchemy.exc import SQLAlchemyError

from core_engine.errors import HeadraceError
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.registry import LIVE, Registry, RegistryView

log = structlog.get_logger(__name__)


class Catalogue:
    """One per process. `start` reads once and goes on reading every `refresh_s` until `close`."""

    def __init__(self, registry: Registry, refresh_s: float = 0.5) -> None:
        self._registry = registry
        self._refresh_s = refresh_s
        self._task: asyncio.Task[None] | None = None
        self.view = RegistryView()
        self.loaded = False  # read successfully at least once
        self.failure: str | None = None  # why the last refresh failed; None while the view is current

    async def start(self) -> None:
        await self.refresh()
        self._task = asyncio.create_task(self._keep_fresh(), name="catalogue")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def resolve(self, name: str, *, alias: str = LIVE) -> Predictor:
        """The version that `alias` points at.

        Raises:
            UnknownName: the message lists the known ones.
        """
        return self.view.resolve(name, alias=alias)

    async def refresh(self) -> None:
        """Read the registry now, in a thread. A failure is remembered and logged once, never raised."""
        try:
            self.view = await asyncio.to_thread(self._registry.view, self.view)
        except (SQLAlchemyError, HeadraceError) as error:
            if self.failure is None:
                log.warning("catalogue_stale", error=str(error), loaded=self.loaded)
            self.failure = str(error)
        else:
            if self.failure is not None:
                log.info("catalogue_recovered")
            self.loaded, self.failure = True, None

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self.refresh()

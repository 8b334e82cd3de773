"""What a door knows of the registry: a view in memory, refreshed in the background, so that no request waits for SQL.

A new version or alias takes effect within one refresh, without a restart. Before a new view is used, what its versions
need in this process is made ready, so that no request pays for the change. A lost database keeps the last view.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import structlog
from sqlalchemy.exc import SQLAlchemyError

from core_engine.errors import HeadraceError
from core_engine.predictors import traffic
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.registry import LIVE, SHADOW, Registry, RegistryView

log = structlog.get_logger(__name__)


class Catalogue:
    """One per process. `start` reads once and goes on reading every `refresh_s` until `close`.

    `prepare` is awaited with every view that differs from the one in use, before that view is used.
    """

    def __init__(
        self,
        registry: Registry,
        refresh_s: float = 0.5,
        prepare: Callable[[RegistryView], Awaitable[None]] | None = None,
    ) -> None:
        self._registry = registry
        self._refresh_s = refresh_s
        self._prepare = prepare
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

    def choose(self, name: str, inputs: Mapping[str, object], *, alias: str = LIVE) -> Predictor:
        """The version that answers these inputs: see `traffic.choose`."""
        return traffic.choose(self.view, name, inputs, alias=alias)

    def shadow_of(self, name: str, version: int) -> Predictor | None:
        """The version that scores again what `version` has answered: none, unless that is live and another."""
        aliases = self.view.aliases
        shadow = aliases.get((name, SHADOW))
        if shadow is None or shadow == version or aliases.get((name, LIVE)) != version:
            return None
        return self.view.versions[name, shadow]

    async def refresh(self) -> None:
        """Read the registry now, in a thread. A failure is remembered and logged once, never raised."""
        try:
            view = await asyncio.to_thread(self._registry.view, self.view)
            if self._prepare is not None and view != self.view:
                await self._prepare(view)
            self.view = view
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

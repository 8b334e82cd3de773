"""What a door keeps true in the background: feature views as registered, rungs loaded, the engine's scorers held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from core_engine.contracts import EMPTY, Deadline, FeatureRow, Monotonic, Scalar
from core_engine.errors import HeadraceError, Unavailable
from core_engine.llm.client import EngineClient
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.declaration import LMGenerate, Predictor, TorchScorer
from core_engine.predictors.registry import RegistryView
from core_engine.predictors.rungs import RungCache
from core_engine.readers import FeatureReader
from featurestore.definitions import FeatureView
from featurestore.on_demand.declaration import OnDemandView
from featurestore.registry import load_on_demand_views, load_views

Views: TypeAlias = tuple[list[FeatureView], list[OnDemandView]]

log = structlog.get_logger(__name__)


async def repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Do `work` for ever, `every_s` after it ended."""
    while True:
        await work()
        await asyncio.sleep(every_s)


class RegisteredFeatureReader:
    """A `FeatureReader` over the views registered now: the newest version of each. A lost database keeps the last ones.

    `build` makes a reader for some stored and some on-demand views.
    """

    def __init__(
        self, database: Engine, build: Callable[[Sequence[FeatureView], Sequence[OnDemandView]], FeatureReader]
    ) -> None:
        self._database = database
        self._build = build
        self._views: Views = ([], [])
        self._reader = build(*self._views)

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        return await self._reader.read(refs, keys, deadline, inputs=inputs)

    async def refresh(self) -> None:
        """Look at the register, and build anew if a view came or changed. Never raises."""
        try:
            views = await asyncio.to_thread(self._load)
            if views != self._views:
                self._reader = self._build(*views)
                self._views = views
                log.info(
                    "feature_views", views=[f"{view.name}:{view.version}" for of_kind in views for view in of_kind]
                )
        except (SQLAlchemyError, HeadraceError) as error:
            log.warning("feature_views_stale", error=str(error))

    def _load(self) -> Views:
        with Session(self._database) as session:  # by version: the newest stays
            stored = {view.name: view for view in load_views(session)}
            on_demand = {view.name: view for view in load_on_demand_views(session)}
        return list(stored.values()), list(on_demand.values())


class ScorerKeeper:
    """Sees to it that the engine holds the torch scorer of every aliased version, whoever restarted it.

    A scorer that the engine holds is not sent again; one that failed is tried again after `retry_s`.
    """

    def __init__(
        self, client: EngineClient, catalogue: Catalogue, retry_s: float = 10.0, clock: Monotonic = time.monotonic
    ) -> None:
        self._client = client
        self._catalogue = catalogue
        self._retry_s = retry_s
        self._clock = clock
        self._incarnation: str | None = None
        self._held: set[str] = set()
        self._failed_s: dict[str, float] = {}

    async def tend(self) -> None:
        """One look: load what is due. Never raises for an engine or a file that is not there."""
        welcome = self._client.welcome
        if welcome is None or not self._client.available:
            return
        if welcome.incarnation != self._incarnation:
            self._incarnation, self._held, self._failed_s = welcome.incarnation, set(welcome.scorers), {}
        for predictor in self._catalogue.view.live():
            if predictor.id not in self._held and self._is_due(predictor.id):
                await self._load(predictor)

    def _is_due(self, scorer: str) -> bool:
        return self._clock() - self._failed_s.get(scorer, float("-inf")) >= self._retry_s

    async def _load(self, predictor: Predictor) -> None:
        model = predictor.model
        if not isinstance(model, TorchScorer):
            return
        try:
            await self._client.load_scorer(predictor.id, model.artifact.path, model.artifact.sha256)
        except Unavailable as error:  # lost on the way: the next look finds out more
            log.info("scorer_not_loaded", scorer=predictor.id, error=str(error))
        except HeadraceError as error:
            self._failed_s[predictor.id] = self._clock()
            log.error("scorer_not_loaded", scorer=predictor.id, error=str(error))
        else:
            self._held.add(predictor.id)
            log.info("scorer_loaded", scorer=predictor.id)


async def warm_rungs(view: RegistryView, rungs: RungCache, deadline: Deadline | None = None) -> None:
    """Load the files of every aliased version before a request asks for them; what is not done by `deadline` goes on
    in the background."""
    for predictor in view.live():
        if not isinstance(predictor.model, LMGenerate):
            await rungs.get(predictor, deadline or Deadline.never())

"""One ladder on stand-ins, with everything that a test may want to turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core_engine import contracts
from core_engine.contracts import Deadline, Monotonic, Prediction, PredictRequest
from core_engine.costs.facts import Fact
from core_engine.costs.spool import Spool, read_spool
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.predictors.places import Places
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import Registry
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.tables import Base, open_database
from core_engine.tenants.quotas import Quotas
from tests.core_engine.predictors.doubles import INPUTS, FakeEngine, FakeFeatures, FakePredictions, delay_predictor


@dataclass
class Ladder:
    folder: Path
    predictor: Predictor
    spool: Spool
    metrics: Metrics
    engine: FakeEngine = field(default_factory=FakeEngine)
    features: FakeFeatures = field(default_factory=FakeFeatures)
    rungs: RungCache = field(default_factory=RungCache)
    predictions: FakePredictions = field(default_factory=FakePredictions)
    connect_predictions: bool = True
    tokenizer: Tokenizer | None = None
    feature_cap_s: float = 0.015
    places: Places | None = None
    quotas: Quotas | None = None

    async def predict(
        self,
        inputs: dict[str, Any] | None = None,
        *,
        deadline: Deadline | None = None,
        predictor: Predictor | None = None,
        clock: Monotonic = time.monotonic,
        is_batch: bool = False,
        rungs: tuple[contracts.Rung, ...] = (),
        flow: PredictFlow | None = None,
    ) -> Prediction:
        """By `flow`, where a test needs one that remembers; by a new one otherwise."""
        chosen = predictor or self.predictor
        if not isinstance(chosen.model, LMGenerate):
            await self.rungs.get(chosen, Deadline.never())  # as a door does before it serves
        request = PredictRequest(
            predictor="delay",
            inputs=INPUTS if inputs is None else inputs,
            attempt_id="attempt",
            deadline=deadline or Deadline.never(),
            delivery_key="delivery",
            path=contracts.Path.BATCH if is_batch else contracts.Path.ONLINE,
            rungs=rungs,
        )
        return await (flow or self.flow(clock)).predict(chosen, request)

    def flow(self, clock: Monotonic = time.monotonic) -> PredictFlow:
        return PredictFlow(
            features=self.features,
            engine=self.engine,
            rungs=self.rungs,
            spool=self.spool,
            metrics=self.metrics,
            feature_cap_s=self.feature_cap_s,
            predictions=self.predictions if self.connect_predictions else None,
            tokenizer=self.tokenizer,
            places=self.places,
            quotas=self.quotas,
            clock=clock,
        )

    def facts(self) -> list[Fact]:
        self.spool.flush()
        return list(read_spool(self.spool.path).facts) if self.spool.path.exists() else []

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def ladder(tmp_path: Path) -> Iterator[Ladder]:
    metrics = Metrics()
    spool = Spool(tmp_path / "spool", "test", metrics)
    yield Ladder(tmp_path, delay_predictor(tmp_path), spool, metrics)
    spool.close()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    database = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    Base.metadata.create_all(database)
    yield Registry(database)
    database.dispose()

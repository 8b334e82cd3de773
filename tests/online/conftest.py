"""The app on a scripted engine; registry, ladder, spool and tokenizer are real. In memory, or behind a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from openai import AsyncOpenAI
from starlette.types import ASGIApp

from core_engine.contracts import Deadline
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import Spool, read_spool
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.catalogue import Catalogue
from core_engine.predictors.declaration import Precomputed
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.registry import Registry
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.shadow import ShadowTraffic
from core_engine.predictors.system_prompt import SystemPrompts
from core_engine.predictors.tables import Base, open_database
from core_engine.settings import HttpSettings
from online.app import create_app
from online.services import Services
from tests.core_engine.predictors.doubles import (
    FakeEngine,
    FakeFeatures,
    FakePredictions,
    delay_predictor,
    notice_predictor,
)

TEXT = "Délai: 15 min 🎈 ok"


@dataclass
class DoorUnderTest:
    app: ASGIApp
    services: Services
    engine: FakeEngine
    features: FakeFeatures
    predictions: FakePredictions
    registry: Registry
    http: httpx.AsyncClient
    store_answers: bool = True
    is_near_limit: bool = False

    def facts(self) -> list[CallerFact]:
        self.services.spool.flush()
        path = self.services.spool.path
        told = read_spool(path).facts if path.exists() else ()
        return [fact for fact in told if isinstance(fact, CallerFact)]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.services.metrics.registry.get_sample_value(name, labels)

    async def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Say something."}]
        return await self.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages} | body)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(default_model_path())


@pytest.fixture
async def door(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[DoorUnderTest]:
    """The app in memory; `door.http` talks to it without a socket."""
    async with opened_door(tmp_path, tokenizer) as under_test:
        yield under_test


@asynccontextmanager
async def opened_door(folder: Path, tokenizer: Tokenizer) -> AsyncIterator[DoorUnderTest]:
    database = open_database(f"sqlite:///{folder / 'registry.db'}")
    Base.metadata.create_all(database)
    registry = Registry(database)
    nightly = Precomputed(key=("origin", "dest"), max_age_s=3600.0)
    for predictor in (delay_predictor(folder, precomputed=nightly), notice_predictor()):
        registry.register(predictor)
        registry.set_alias(predictor.name, "live", predictor.version)
    catalogue, rungs = Catalogue(registry), RungCache()
    await catalogue.refresh()
    await rungs.get(catalogue.resolve("delay"), Deadline.never())
    metrics, engine, features = Metrics(), FakeEngine(tokenizer.encode(TEXT)), FakeFeatures()
    predictions = FakePredictions()
    spool = Spool(folder / "spool", "door", metrics)

    async def ping() -> bool:
        return under_test.store_answers

    flow = PredictFlow(features=features, engine=engine, rungs=rungs, spool=spool, metrics=metrics, feature_cap_s=0.015)
    shadow = ShadowTraffic(
        flow=flow, catalogue=catalogue, spool=spool, metrics=metrics, is_near_limit=lambda: under_test.is_near_limit
    )
    services = Services(
        http=HttpSettings(max_body_bytes=4096, max_streams=2),
        model_name="tiny",
        catalogue=catalogue,
        flow=flow,
        predictions=predictions,
        shadow=shadow,
        client=engine,
        tokenizer=tokenizer,
        system_prompts=SystemPrompts(tokenizer),
        spool=spool,
        metrics=metrics,
        ping_store=ping,
    )
    app = create_app(services)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as http:
        under_test = DoorUnderTest(app, services, engine, features, predictions, registry, http)
        yield under_test
    spool.close()
    database.dispose()


@dataclass
class ServedDoor:
    """The same door behind a real server, with the official client."""

    door: DoorUnderTest
    port: int
    http: httpx.AsyncClient
    openai: AsyncOpenAI


@pytest.fixture
async def served(door: DoorUnderTest) -> AsyncIterator[ServedDoor]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = uvicorn.Config(door.app, http="httptools", log_config=None, access_log=False, lifespan="on")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{port}"
        async with (
            httpx.AsyncClient(base_url=url, timeout=30) as http,
            AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30, _strict_response_validation=True
            ) as openai,
        ):
            await http.get("/healthz")
            yield ServedDoor(door, port, http, openai)
        server.should_exit = True
        await serving

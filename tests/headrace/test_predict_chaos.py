"""A door, an engine and a Valkey as processes, under load: each is killed or stopped, and every request is answered.

Answers are judged by what the door itself wrote down: the status, the rung, and whether it was in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy.orm import Session

from core_engine.contracts import Pool, Rung, entity_key
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import read_spool
from core_engine.llm.client import EngineClient
from core_engine.predictors.declaration import FeatureUse, OnState, Precomputed, TorchScorer
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.scoring.torch_scorer import TabularMLP, TabularSpec, save_scorer
from core_engine.settings import RedisSettings
from featurestore.definitions import FeatureType, Field
from featurestore.online.connection import StoreClient, connect
from featurestore.online.store import OnlineStore
from featurestore.predictions import PredictionStore
from featurestore.registry import register_view
from headrace.migrations import upgrade
from headrace.runtime import free_port
from tests.core_engine.llm.test_client_and_server import until
from tests.core_engine.llm.tiny import request
from tests.core_engine.predictors.doubles import INPUTS, MEAN_DELAY, STUDENT_SCORE, delay_predictor
from tests.featurestore.conftest import own_server, socket_dir
from tests.featurestore.rows import NOW, make_view, row
from tests.featurestore.test_predictions import publish
from tests.featurestore.valkey import Valkey
from tests.headrace.test_engine_process import ROOT, TOY

__all__ = ["own_server", "socket_dir"]

ROUTE, STORED_VALUE = entity_key("JFK", "LAX"), 0.625
VIEW = make_view(Field(name="mean_delay", type=FeatureType.FLOAT64), name="route", entity="route", ttl_s=86_400.0)
WORKERS = 4
DAY_S = 86_400.0


@dataclass
class Site:
    """The processes, and what was answered so far."""

    environ: dict[str, str]
    state: Path
    valkey: Valkey
    http: httpx.AsyncClient
    door: subprocess.Popen[str] | None = None
    engine: subprocess.Popen[bytes] | None = None
    log: threading.Thread | None = None
    statuses: Counter[int] = field(default_factory=Counter)

    def start_engine(self) -> None:
        self.engine = subprocess.Popen([sys.executable, "-c", TOY], env=self.environ, cwd=ROOT)

    def start_door(self) -> None:
        argv = [sys.executable, "-m", "headrace", "door"]
        self.door = subprocess.Popen(argv, env=self.environ, stderr=subprocess.PIPE, text=True)

    def until_up(self) -> None:
        """Until the door serves, which it logs; that the port listens is no sign."""
        assert self.door is not None
        assert self.door.stderr is not None
        for line in self.door.stderr:
            if json.loads(line)["event"] == "door_serving":
                break
        self.log = threading.Thread(target=self.door.stderr.read)  # a full pipe would hold up the door
        self.log.start()

    async def fill(self) -> None:
        """The features and the published prediction of the one route that is asked about."""
        async with store_of(self.valkey) as client:
            await OnlineStore(client, [VIEW], DAY_S).write(VIEW, [row(ROUTE, {"mean_delay": 12.5}, NOW)])
            await publish(PredictionStore(client, DAY_S), "delay:1", "g1", {ROUTE: STORED_VALUE}, 1)

    async def ask(self) -> dict[str, Any]:
        reply = await self.http.post("/v1/predict/delay", json={"inputs": INPUTS})
        self.statuses[reply.status_code] += 1
        return reply.json() if reply.status_code == 200 else {"rung": "", "detail": reply.text}

    async def ask_many(self, count: int) -> list[dict[str, Any]]:
        """`count` requests by a few callers, each the next as soon as it is answered."""

        async def one_after_another() -> list[dict[str, Any]]:
            return [await self.ask() for _ in range(count // WORKERS)]

        return [
            each for answers in await asyncio.gather(*(one_after_another() for _ in range(WORKERS))) for each in answers
        ]

    async def until(self, rung: Rung) -> int:
        """Ask until that rung answers; how often that was."""
        count = 1
        while (await self.ask())["rung"] != rung:
            count += 1
        return count

    async def num_reads(self) -> int:
        async with store_of(self.valkey) as client:
            administration: Any = client
            stats = await administration.info("commandstats")
            return int(stats.get("cmdstat_hmget", {"calls": 0})["calls"])

    def end(self) -> list[CallerFact]:
        """Stop the door in order; what it wrote down of every request."""
        assert self.door is not None
        self.door.send_signal(signal.SIGTERM)
        assert self.door.wait() == 0
        facts = [fact for path in (self.state / "spool").glob("door-*") for fact in read_spool(path).facts]
        return [fact for fact in facts if isinstance(fact, CallerFact)]


@asynccontextmanager
async def store_of(valkey: Valkey) -> AsyncIterator[StoreClient]:
    client = connect(RedisSettings(url=valkey.url))
    yield client
    await client.aclose()


def register(folder: Path, url: str) -> None:
    """A predictor with every rung, whose model needs the route's feature: without the store, it is the student's."""
    upgrade(url)
    predictor = delay_predictor(
        folder,
        features=(FeatureUse(ref=MEAN_DELAY, on_missing=OnState.NEXT_RUNG),),
        precomputed=Precomputed(key=("origin", "dest"), max_age_s=DAY_S),
        ladder=(Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR),
        budget_ms=5000.0,  # for a machine that has other work
        reserve_ms=1000.0,
    )
    scorer = save_scorer(folder / "real.safetensors", TabularMLP(TabularSpec.of(predictor.columns)))
    database = open_database(url)
    registry = Registry(database)
    registry.register(replace(predictor, model=TorchScorer(artifact=scorer)))
    registry.set_alias("delay", "live", 1)
    with Session(database) as session, session.begin():
        register_view(session, VIEW)
    database.dispose()


@pytest.fixture
async def site(tmp_path: Path, socket_dir: Path, own_server: Valkey) -> AsyncIterator[Site]:
    register(tmp_path, f"sqlite:///{tmp_path / 'headrace.db'}")
    port = free_port("127.0.0.1")
    own = {
        "STATE_DIR": tmp_path,
        "HTTP__PORT": port,
        "REDIS__URL": own_server.url,
        "ENGINE__ENDPOINT": f"ipc://{socket_dir}/e",
        "ENGINE__HEARTBEAT_S": 0.05,
        "FEATURES__CAP_MS": 500,  # as above
    }
    rest = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    environ = rest | {f"HEADRACE_{key}": str(value) for key, value in own.items()}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        site = Site(environ, tmp_path, own_server, http)
        site.start_engine()
        site.start_door()
        try:
            site.until_up()
            await site.fill()
            await site.until(Rung.MODEL)
            yield site
        finally:
            for process in (site.door, site.engine):
                if process is not None:
                    process.kill()
                    process.wait()
            if site.log is not None:
                site.log.join()
            if site.door is not None and site.door.stderr is not None:
                site.door.stderr.close()


def check(site: Site) -> None:
    """Nobody got a 5xx, everybody an answer in time, and the door knows of all of them."""
    facts = site.end()
    assert set(site.statuses) == {200}
    assert len(facts) == site.statuses[200]
    assert all(fact.delivered_in_time for fact in facts)


async def test_a_killed_store_is_the_student_and_the_model_again_when_it_is_back(site: Site) -> None:
    assert {answer["rung"] for answer in await site.ask_many(80)} == {"model"}
    site.valkey.kill()
    answers = await site.ask_many(400)
    assert {(answer["rung"], answer["value"]) for answer in answers} == {("student", STUDENT_SCORE)}
    assert {answer["reason"] for answer in answers} == {"features_unavailable"}
    site.valkey.start()
    await site.fill()
    await site.until(Rung.MODEL)
    before = await site.num_reads()
    assert {answer["rung"] for answer in await site.ask_many(200)} == {"model"}
    assert await site.num_reads() - before <= 2 * 200
    check(site)


async def test_a_frozen_store_costs_few_requests_their_wait_and_gets_no_backlog(site: Site) -> None:
    assert {answer["rung"] for answer in await site.ask_many(80)} == {"model"}
    before = await site.num_reads()
    site.valkey.stall()
    answers = await site.ask_many(400)
    assert {(answer["rung"], answer["value"]) for answer in answers} == {("student", STUDENT_SCORE)}
    assert sum("breaker_open" in answer["detail"] for answer in answers) > 200
    site.valkey.resume()
    await site.until(Rung.MODEL)
    assert {answer["rung"] for answer in await site.ask_many(200)} == {"model"}
    assert 200 <= await site.num_reads() - before <= 2 * 200  # with all that it was sent while it stood still
    check(site)


async def test_a_killed_engine_is_what_was_computed_ahead_and_the_model_again_when_it_is_back(site: Site) -> None:
    assert site.engine is not None
    under_load = asyncio.create_task(site.ask_many(400))
    await site.until(Rung.MODEL)
    site.engine.kill()
    site.engine.wait()
    assert {answer["rung"] for answer in await under_load} <= {"model", "precomputed"}
    answers = await site.ask_many(100)
    assert {(answer["rung"], answer["value"]) for answer in answers} == {("precomputed", STORED_VALUE)}
    assert {answer["reason"] for answer in answers} == {"engine_unavailable"}
    assert {answer["stored"]["generation"] for answer in answers} == {"g1"}
    site.start_engine()
    await site.until(Rung.MODEL)
    assert {answer["rung"] for answer in await site.ask_many(100)} == {"model"}
    check(site)


async def test_an_engine_full_of_bulk_answers_by_the_model_and_goes_on_with_bulk(site: Site) -> None:
    client, told = EngineClient(site.environ["HEADRACE_ENGINE__ENDPOINT"]), Counter[int]()

    async def texts(which: int) -> None:
        """One after the other, without end."""
        while True:
            async for delta in client.generate(request(max_tokens=200, pool=Pool.BULK)):
                told[which] += len(delta.token_ids)

    await client.start()
    await client.wait_available(60)
    bulk = [asyncio.create_task(texts(which)) for which in range(8)]
    await until(lambda: len(told) == len(bulk))
    before = told.copy()
    assert {answer["rung"] for answer in await site.ask_many(400)} == {"model"}
    await until(lambda: all(told[which] > before[which] for which in before))
    for task in bulk:
        task.cancel()
    await asyncio.gather(*bulk, return_exceptions=True)
    await client.close()
    check(site)

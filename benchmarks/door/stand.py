"""What is measured on: the local stack with the flights example, the bare service beside it, and files of requests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from benchmarks.comparison.child import Child, rss_bytes
from benchmarks.door.bare_server import HOST, BareConfig, BareView
from core_engine.contracts import Deadline
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.feature_use import judge
from core_engine.predictors.inputs import check_inputs, entity_keys
from core_engine.settings import EngineSettings, Settings
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from headrace.demo.run import demo_settings
from headrace.flights import PREDICT, Flights, load_flights, work_dir
from headrace.runtime import free_port
from headrace.stack import LocalStack
from headrace.steps import Steps

BARE_S = 60.0
CHECKED = 20  # flights whose score must be the same from both services
SAME = 1e-5


class StandFailed(Exception):
    """There is nothing to compare: the bare service did not come up, or does not compute the same."""


@dataclass(frozen=True, slots=True)
class Stand:
    url: str
    bare_url: str
    folder: Path
    requests: Sequence[Mapping[str, Any]]  # inputs of flights
    engine: EngineSettings
    door_pid: int

    def bodies(self, name: str, requests: Sequence[Mapping[str, Any]] | None = None, **fields: object) -> Path:
        """A file of one body per request, or per flight: its inputs, and `fields`."""
        path, asked = self.folder / f"{name}.jsonl", self.requests if requests is None else requests
        path.write_text("".join(json.dumps({"inputs": inputs, **fields}) + "\n" for inputs in asked))
        return path

    def door_mib(self) -> float:
        """Resident memory of the door's process."""
        return rss_bytes([self.door_pid]) / 2**20


@asynccontextmanager
async def standing(given: Settings, folder: Path) -> AsyncIterator[Stand]:
    """Everything up, loaded and checked; a state folder of its own below `folder`."""
    steps = Steps(Console(stderr=True))
    stack = LocalStack(demo_settings(given.model_copy(update={"state_dir": folder})), fresh=True)
    async with AsyncExitStack() as exits:
        with steps.step("Start the stack"):
            await exits.enter_async_context(stack)
        flights = await load_flights(stack.settings, stack.url, work_dir(given), datetime.now(UTC), steps)
        with steps.step("Start the bare service"):
            bare_url = await _bare_service(stack.settings, flights, folder, exits)
            await _check_same(stack.url, bare_url, flights)
        pid = stack.supervisor.status("door").pid
        assert pid is not None
        yield Stand(
            url=stack.url,
            bare_url=bare_url,
            folder=folder,
            requests=[request.inputs for request in flights.requests],
            engine=stack.settings.engine,
            door_pid=pid,
        )


async def _bare_service(settings: Settings, flights: Flights, folder: Path, exits: AsyncExitStack) -> str:
    predictor, port = flights.prepared.delay_risk, free_port(HOST)
    views = _bare_views(predictor, flights)
    await _fill(settings, flights, views)
    config = folder / "bare.json"
    config.write_bytes(msgspec.json.encode(BareConfig(settings.redis.url, predictor, views)))
    command = [sys.executable, "-m", "benchmarks.door.bare_server", str(port), str(config)]
    child = Child(command, os.environ, folder / "bare.log")
    exits.callback(child.close)
    url = f"http://{HOST}:{port}"
    await _until_answered(url, flights, child)
    return url


def _bare_views(predictor: Predictor, flights: Flights) -> tuple[BareView, ...]:
    """The predictor's views with their keys' fields; refs in the order of the predictor."""
    entities = {view.name: view.entity for view in flights.prepared.views}
    fields = {use.entity: use.fields for use in predictor.entities}
    refs = [use.ref for use in predictor.features]
    names = dict.fromkeys(ref.partition(".")[0] for ref in refs)
    return tuple(
        BareView(name, fields[entities[name]], tuple(ref for ref in refs if ref.startswith(f"{name}.")))
        for name in names
    )


async def _fill(settings: Settings, flights: Flights, views: Iterable[BareView]) -> None:
    """The features of all requests as our reader finds them now, one blob per view and entity."""
    client = connect(settings.redis)
    try:
        predictor, known = flights.prepared.delay_risk, flights.prepared.views
        reader = OnlineFeatureReader(OnlineStore(client, known, settings.features.retention_s), known)
        refs, blobs = [use.ref for use in predictor.features], dict[str, bytes]()
        for request in flights.requests:
            inputs = check_inputs(predictor, request.inputs)
            row = await reader.read(refs, entity_keys(predictor, inputs), Deadline.after(10.0))
            values = judge(predictor.features, row).values
            blobs |= {view.key(inputs): msgspec.msgpack.encode([values[ref] for ref in view.refs]) for view in views}
        await client.mset(blobs)
    finally:
        await client.aclose()


async def _until_answered(url: str, flights: Flights, child: Child) -> None:
    body = {"inputs": flights.requests[0].inputs}
    async with asyncio.timeout(BARE_S), httpx.AsyncClient(base_url=url) as client:
        while True:
            try:
                (await client.post(PREDICT, json=body)).raise_for_status()
                return
            except httpx.TransportError:
                if child.process.poll() is not None:
                    raise StandFailed(f"the bare service ended: {child.last_words()}") from None
            await asyncio.sleep(0.1)


async def _check_same(url: str, bare_url: str, flights: Flights) -> None:
    """Raises `StandFailed` where both do not give the same score."""
    async with httpx.AsyncClient(timeout=10.0) as client:
        for request in flights.requests[:CHECKED]:
            replies = [await client.post(base + PREDICT, json={"inputs": request.inputs}) for base in (url, bare_url)]
            ours, bare = (reply.raise_for_status().json() for reply in replies)
            if ours["rung"] == "model" and abs(ours["value"] - bare["value"]) > SAME:
                raise StandFailed(f"{request.inputs}: ours {ours['value']}, bare {bare['value']}")

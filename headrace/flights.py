"""Loads the flights example into a running local stack: prepare, materialize, register, until the door answers from it.

Called by `headrace up --example flights` and by `headrace demo`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, StoreUnavailable, Unavailable
from core_engine.pools.supervisor import Supervisor, is_ready_again
from core_engine.predictors.registry import LIVE, Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from examples.flights.prepare import Prepared, prepare
from examples.flights.repository import flight_repository
from examples.flights.upcoming import UpcomingFlight, upcoming_flights
from featurestore.lifecycle.changes import apply
from featurestore.materialize import materialize
from featurestore.online.connection import connect
from featurestore.online.store import OnlineStore
from headrace.feature_checks import check_features
from headrace.steps import Steps

PREDICT = "/v1/predict/delay_risk"
POLL_S = 0.1
SERVED_S = 30.0
OnProgress: TypeAlias = Callable[[int, int, str], None]  # done, of how many, what


@dataclass(frozen=True, slots=True)
class Request:
    """One real flight as the door wants it: `name` as passengers know it, `inputs` in JSON's types."""

    name: str
    inputs: Mapping[str, Any]

    def notice_request(self, chance_late: float) -> str:
        """What asks for a notice about it, given what delay_risk said."""
        departure = self.inputs["scheduled_departure"][11:16]
        return (
            f"Please tell the passengers of flight {self.name} ({self.inputs['origin']} to {self.inputs['dest']}, "
            f"departure {departure}) that it may arrive late: our forecast sees a {100 * chance_late:.0f} % chance of "
            "a delay of 15 minutes or more."
        )


@dataclass(frozen=True, slots=True)
class Flights:
    """The example as loaded at `now`: features as known then, and the flights next due after it.

    `chance_late` is what the model said of the first of them.
    """

    prepared: Prepared
    requests: tuple[Request, ...]
    chance_late: float
    feature_rows: int
    now: datetime
    streamed_from: datetime | None = None


def work_dir(settings: Settings) -> Path:
    """Where the prepared example is kept from run to run, whatever becomes of the rest of the state."""
    return settings.state_dir / "flights"


async def load_flights(
    settings: Settings, url: str, folder: Path, now: datetime, steps: Steps, streamed_from: datetime | None = None
) -> Flights:
    """Prepare the example under `folder` (cached there) and load it as known at `now` into the stack at `url`.

    Windows are loaded as known at `streamed_from`, where it is given: what came after is left to the stream.

    Raises:
        ConfigurationError: the data or a package is missing, or the registry holds other declarations.
        Unavailable: the stack did not answer from it in time.
    """
    with steps.step("Prepare flights") as bar:
        prepared = await prepare_in_thread(folder, now, lambda stage, done, total: bar.advance(done, total, stage))
    with steps.step("Materialize features") as bar:
        feature_rows = await fill_store(settings, prepared, now, bar.advance, streamed_from)
    with steps.step("Register predictors"):
        await asyncio.to_thread(register, settings, prepared)
        requests = tuple(as_request(flight) for flight in await asyncio.to_thread(upcoming_flights, prepared, now))
        chance_late = await until_served(url, requests[0])
    return Flights(prepared, requests, chance_late, feature_rows, now, streamed_from)


async def prepare_in_thread(folder: Path, now: datetime, progress: Callable[[str, int, int], None]) -> Prepared:
    """`prepare`, off the event loop. When cancelled it ends at its next word of progress, and is waited for."""
    cancelled = threading.Event()

    def tell(stage: str, done: int, total: int) -> None:
        if cancelled.is_set():
            raise asyncio.CancelledError
        progress(stage, done, total)

    work = asyncio.ensure_future(asyncio.to_thread(prepare, folder, now, tell))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait({work})
        raise


def _silent(_done: int, _total: int, _view: str) -> None:
    """No progress wanted."""


async def fill_store(
    settings: Settings,
    prepared: Prepared,
    now: datetime,
    on_progress: OnProgress = _silent,
    streamed_from: datetime | None = None,
) -> int:
    """Materialize every view as known at `now`, windows as at `streamed_from`; returns the rows now online. Safe to
    repeat."""
    client = connect(settings.redis)
    try:
        store = OnlineStore(client, prepared.views, settings.features.retention_s)
        rows = 0
        for view in prepared.views:
            tell = partial(_tell, on_progress, view.name)
            as_of = now if view.window is None else streamed_from or now
            done = await materialize(view, store, as_of, tell, prepared.clock.shift)
            rows += done.written + done.kept
        return rows
    finally:
        await client.aclose()


def _tell(on_progress: OnProgress, view: str, done: int, total: int) -> None:
    on_progress(done, total, view)


def register(settings: Settings, prepared: Prepared) -> None:
    """Register views and predictors and make version 1 of each predictor live."""
    database = open_database(settings.database_url)
    try:
        _register(database, prepared)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error} (the example has changed since it was loaded here: remove {settings.state_dir} to begin anew)"
        ) from None
    finally:
        database.dispose()


def _register(database: Engine, prepared: Prepared) -> None:
    with Session(database) as session, session.begin():
        apply(session, flight_repository(prepared.views))
    registry = Registry(database)
    for predictor in prepared.predictors:
        registry.register(predictor)
        check_features(database, predictor)
        registry.set_alias(predictor.name, LIVE, predictor.version)


def as_request(flight: UpcomingFlight) -> Request:
    return Request(flight.name, msgspec.to_builtins(flight.inputs))


async def until_served(url: str, request: Request) -> float:
    """Wait until the door answers from the model rung (it has read the registry, the engine holds the scorer); its
    answer."""
    give_up_s = time.monotonic() + SERVED_S
    async with httpx.AsyncClient(base_url=url, timeout=5.0) as client:
        while True:
            reply = await client.post(PREDICT, json={"inputs": request.inputs})
            if reply.status_code == httpx.codes.OK and reply.json()["rung"] == "model":
                return float(reply.json()["value"])
            if time.monotonic() > give_up_s:
                raise Unavailable(f"{PREDICT} is not served {SERVED_S:.0f} s after it was registered: {reply.text}")
            await asyncio.sleep(POLL_S)


async def refill(supervisor: Supervisor, settings: Settings, flights: Flights) -> None:
    """Our own Valkey keeps nothing on disk: whenever it was restarted, load the features again."""
    restarts = 0
    while True:
        restarts = (await supervisor.until("valkey", is_ready_again(restarts))).restarts
        with suppress(StoreUnavailable):  # lost again meanwhile: its next restart is waited for
            await fill_store(settings, flights.prepared, flights.now, streamed_from=flights.streamed_from)


def how_to_ask(url: str, flights: Flights) -> str:
    """Command lines that can be pasted: one prediction, one streamed notice."""
    request = flights.requests[0]
    notice = request.notice_request(flights.chance_late)
    chat = {"model": "flight_notice", "stream": True, "messages": [{"role": "user", "content": notice}]}
    return "\n".join(
        ("", _curl(url + PREDICT, {"inputs": request.inputs}), "", _curl(f"{url}/v1/chat/completions", chat), "")
    )


def _curl(url: str, body: dict[str, object]) -> str:
    return f"curl -sN {url} -H 'content-type: application/json' -d '{json.dumps(body)}'"

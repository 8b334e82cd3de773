from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from core_engine.contracts import Scalar
from core_engine.errors import ConfigurationError, StoreUnavailable, Unavailable
from core_engine.pools.child import ChildSpec
from core_engine.pools.replica import RestartPolicy
from core_engine.pools.supervisor import Supervisor, is_ready_again
from core_engine.predictors.declaration import LMGenerate, Predictor
from core_engine.settings import Settings
from examples.flights.prepare import Prepared
from examples.flights.upcoming import UpcomingFlight
from headrace import flights
from headrace.migrations import upgrade

NOW = datetime(2026, 11, 30, 11, tzinfo=UTC)


async def test_a_cancelled_preparation_ends_at_its_next_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def prepare(folder: Path, now: datetime, progress: Callable[[str, int, int], None]) -> None:
        begun.set()
        go_on.wait()
        try:
            progress("train scorer", 1, 6)
        finally:
            ended.set()

    monkeypatch.setattr(flights, "prepare", prepare)
    heard: list[str] = []
    task = asyncio.create_task(flights.prepare_in_thread(tmp_path, NOW, lambda stage, done, total: heard.append(stage)))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert heard == []


def test_a_request_is_json_with_the_offset_of_the_airport() -> None:
    departure = datetime.fromisoformat("2026-12-01T05:15:00-05:00")
    inputs: dict[str, Scalar] = {"origin": "EWR", "dest": "IAH", "scheduled_departure": departure, "distance": 1400.0}
    request = flights.as_request(UpcomingFlight("UA 1545", inputs, late=False))
    assert request.inputs["scheduled_departure"] == "2026-12-01T05:15:00-05:00"
    assert "flight UA 1545 (EWR to IAH, departure 05:15)" in request.notice_request(0.614)
    assert "a 61 % chance" in request.notice_request(0.614)


async def test_a_restarted_valkey_is_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fills: asyncio.Queue[datetime] = asyncio.Queue()

    async def fill_store(settings: Settings, prepared: object, now: datetime, streamed_from: object) -> int:
        fills.put_nowait(now)
        if fills.qsize() == 1:
            raise StoreUnavailable("lost again")
        return 1

    async def ready() -> None:
        pass

    monkeypatch.setattr(flights, "fill_store", fill_store)
    loaded = flights.Flights(cast("Prepared", None), (), 0.2, 1, NOW)
    async with Supervisor(tmp_path, RestartPolicy(first_s=0.001)) as supervisor:
        await supervisor.start(ChildSpec("valkey", ("sleep", "600"), dict(os.environ), ready))
        refilling = asyncio.create_task(flights.refill(supervisor, Settings(), loaded))
        for restarts in (0, 1):
            status = await supervisor.until("valkey", is_ready_again(restarts - 1))
            assert status.pid is not None
            os.kill(status.pid, signal.SIGKILL)
            assert await fills.get() == NOW
        refilling.cancel()


def test_a_changed_example_says_how_to_begin_anew(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    upgrade(settings.database_url)

    def example(description: str) -> Prepared:
        notice = Predictor(
            name="note", version=1, owner="us", model=LMGenerate(system_prompt="Be brief."), description=description
        )
        return cast("Prepared", SimpleNamespace(views=(), predictors=(notice,)))

    flights.register(settings, example("first"))
    flights.register(settings, example("first"))
    with pytest.raises(ConfigurationError, match=rf"note:1 .*remove {tmp_path} to begin anew"):
        flights.register(settings, example("second"))


async def test_a_door_that_never_serves_the_example_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "SERVED_S", 0.0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\nConnection: close\r\n\r\nno such x")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="not served 0 s after it was registered: no such x"):
            await flights.until_served(url, flights.Request("UA 1", {"origin": "EWR"}))

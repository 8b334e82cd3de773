from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core_engine.contracts import Scalar
from examples.flights.upcoming import UpcomingFlight
from headrace import flights

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

"""A predictor of texts by name, and work that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from batch.reader import Row
from batch.work import Answer
from core_engine.contracts import Rung
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.predictors.declaration import InputField, InputKind, LMGenerate, Precomputed, Predictor
from tests.featurestore.rows import unique

NAME = unique("text")  # so that tests can share one server


def text_predictor(**changes: Any) -> Predictor:
    declared: dict[str, Any] = {
        "name": NAME,
        "version": 1,
        "owner": "tests",
        "model": LMGenerate(system_prompt="Be brief.", prompt="{name}"),
        "inputs": (InputField(name="name", kind=InputKind.STRING),),
        "precomputed": Precomputed(key=("name",), max_age_s=3600.0),
    }
    return Predictor(**{**declared, **changes})


class FakeWork:
    """Answers a row with its own name in capitals, and a row whose name is "bad" never.

    `before` is called with every unit that is asked for and may raise; `hold` makes an answer wait for it.
    """

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        self.before = before
        self.hold: asyncio.Event | None = None
        self.not_ready: HeadraceError | None = None
        self.num_ready = 0
        self.asked: list[int] = []
        self.in_flight = self.most_in_flight = 0

    async def ready(self) -> None:
        self.num_ready += 1
        if self.not_ready is not None:
            raise self.not_ready

    async def answer(self, row: Row, delivery_key: str) -> Answer:
        self.asked.append(row.unit)
        self.before(row.unit)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.in_flight -= 1
        name = str(row.inputs.get("name"))
        if name == "bad":
            raise InvalidRequest("input 'name' = 'bad' has the wrong kind")
        return Answer(name.upper(), name, Rung.MODEL, None, "stop", batch_size=self.in_flight + 1)

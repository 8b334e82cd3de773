"""Clients that leave: the engine ends their work before its next step, and nothing is left behind after a storm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import read_spool
from tests.core_engine.llm.running import Gate
from tests.core_engine.llm.test_client_and_server import until
from tests.online.conftest import DoorUnderTest
from tests.online.real_door import MESSAGES, RealDoor, real_door

NUM_DISCONNECTS, TOGETHER = 500, 24
LONG: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture
async def real(door: DoorUnderTest) -> AsyncIterator[RealDoor]:
    async with real_door(door) as real:
        yield real


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 3}),
        ("/v1/completions", {"prompt": ["ab", "cd"], "n": 2}),
    ],
)
async def test_a_disconnect_ends_every_choice_without_another_step(
    real: RealDoor, route: str, body: dict[str, Any]
) -> None:
    gate = Gate(real.served, steps=6)
    async with real.http.stream("POST", route, json=LONG | body | {"stream": True}) as reply:
        events = reply.aiter_text()
        await anext(events)
        num_choices = body.get("n", 1) * len(body.get("prompt", "x"))
        await until(lambda: gate.steps == 0 and len(real.served.server.attempts) == num_choices)
    await until(lambda: not len(real.served.server.attempts))  # no step has passed the gate
    assert gate.steps == 0
    gate.open()
    await real.quiet()
    assert {fact.outcome for fact in real.served.facts} == {"abort"}


async def leave(real: RealDoor, rng: random.Random, slots: asyncio.Semaphore) -> None:
    """A request of any kind whose client goes away: at once, or after a few events of its stream."""
    is_chat, is_stream = rng.random() < 0.6, rng.random() < 0.8
    own = {"messages": MESSAGES} if is_chat else {"prompt": rng.choice(["ok", ["ab", "cd"]])}
    body = json.dumps(LONG | own | {"n": rng.choice([1, 1, 1, 2]), "stream": is_stream}).encode()
    route, num_events = ("/v1/chat/completions" if is_chat else "/v1/completions"), rng.choice([0, 1, 2, 3, 8])
    async with slots:
        reader, writer = await asyncio.open_connection(real.http.base_url.host, real.http.base_url.port)
        head = f"POST {route} HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        with contextlib.suppress(asyncio.IncompleteReadError):  # refused: there is no stream
            for _ in range(num_events if is_stream else 0):
                await reader.readuntil(b"data: ")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_after_a_storm_of_disconnects_nothing_is_in_flight_and_every_block_is_free(real: RealDoor) -> None:
    rng, slots = random.Random(5), asyncio.Semaphore(TOGETHER)
    await asyncio.gather(*(leave(real, rng, slots) for _ in range(NUM_DISCONNECTS)))
    await real.quiet()

    services, snapshot = real.services, real.client.snapshot
    assert (services.state.streams, services.state.in_flight) == (0, 0)
    assert snapshot is not None
    assert snapshot.free_blocks == snapshot.total_blocks
    counters = list(snapshot.counters.values())
    assert sum(c.admitted for c in counters) == sum(sum(c.finished.values()) for c in counters)
    assert sum(c.finished.get("abort", 0) for c in counters) > NUM_DISCONNECTS / 10, "the storm was too mild"
    ended = sum(
        sample.value
        for family in services.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "headrace_generations_total"
    )
    services.spool.flush()
    facts = [fact for fact in read_spool(services.spool.path).facts if isinstance(fact, CallerFact)]
    assert len(facts) == len({fact.attempt_id for fact in facts}) == ended
    reply = await real.http.post("/v1/completions", json={"model": "tiny", "prompt": "ok", "max_tokens": 3})
    assert reply.status_code == 200  # and it goes on

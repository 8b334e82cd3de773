from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.loadgen.connections import Address, ConnectionPool
from headrace.loadgen.load_run import LoadRun
from headrace.loadgen.targets import predict_target
from headrace.runtime import free_port
from tests.headrace.loadgen.server import Asked, Handle, Server, predicts, serving

BODIES = [b'{"inputs": {"n": %d}}' % number for number in range(3)]


def run_against(address: Address, timeout_s: float = 60.0, connections: int = 100) -> LoadRun:
    target = predict_target("delay_risk", BODIES)
    return LoadRun(target.requests(address, {}), target.reader, ConnectionPool(address, connections), timeout_s)


@asynccontextmanager
async def running(handle: Handle, timeout_s: float = 60.0) -> AsyncIterator[tuple[Server, LoadRun]]:
    async with serving(handle) as server:
        run = run_against(server.address, timeout_s)
        yield server, run
        run.pool.close()


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    all_there = asyncio.Event()

    async def answers_when_all_have_asked(asked: Asked) -> None:
        if len(server.asked) == 20:
            all_there.set()
        await all_there.wait()
        await predicts(asked)

    async with running(answers_when_all_have_asked) as (server, run):
        await run.open_loop(0.0 for _ in range(20))
        assert [record.in_flight for record in run.records] == list(range(1, 21))
        assert all(record.answer is not None for record in run.records)
        assert run.in_flight == 0


async def test_latency_and_lateness_count_from_the_instant_at_which_a_request_was_due() -> None:
    async with running(predicts) as (_, run):
        await run.open_loop([-7.0])
        (record,) = run.records
        assert record.due_s == run.start_s - 7.0
        assert record.answer is not None
        assert record.sent_s is not None
        assert record.answer.last_s >= record.sent_s >= record.due_s + 7.0


async def test_bodies_are_sent_in_turn_to_the_predictors_route() -> None:
    async with running(predicts) as (server, run):
        await run.closed_loop(1, seconds=0.0)
        assert server.asked == []
        await run.open_loop([0.0])
        for _ in range(4):
            await run.open_loop([0.0])
        assert [asked.json()["inputs"]["n"] for asked in server.asked] == [0, 1, 2, 0, 1]
        assert {asked.path for asked in server.asked} == {"/v1/predict/delay_risk"}


async def test_a_closed_loop_has_so_many_in_flight_and_no_more() -> None:
    seen = set[int]()

    async def handle(asked: Asked) -> None:
        seen.add(run.in_flight)
        await predicts(asked)

    async with running(handle) as (_, run):
        clock = itertools.count()
        run.clock = lambda: next(clock) * 0.01
        await run.closed_loop(3, seconds=2.0)
        assert max(record.in_flight for record in run.records) == 3
        assert max(seen) == 3
        assert len(run.records) > 3


async def test_failures_are_recorded_by_kind_with_the_first_in_words() -> None:
    async def handle(asked: Asked) -> None:
        asked.reply_json({"detail": f"draining {len(server.asked)}"}, 503)

    async with running(handle) as (server, run):
        await run.open_loop([0.0])
        await run.open_loop([0.0])
        assert [record.failure for record in run.records] == ["http_503", "http_503"]
        assert "draining 1" in run.details["http_503"]
        assert run.pool.num_opened == 1  # a refusal is a whole answer: its connection goes on


async def test_no_answer_in_time_is_a_timeout_and_frees_the_connection() -> None:
    async def never(_: Asked) -> None:
        await asyncio.Event().wait()

    async with running(never, timeout_s=0.02) as (_, run):
        await run.open_loop([0.0, 0.0])
        assert [record.failure for record in run.records] == ["timeout", "timeout"]
        assert run.pool.in_use == run.in_flight == 0


async def test_a_server_that_is_not_there_is_counted_not_raised() -> None:
    run = run_against(Address("127.0.0.1", free_port("127.0.0.1")))
    await run.open_loop([0.0])
    (record,) = run.records
    assert (record.failure, record.sent_s, record.answer) == ("connect", None, None)


async def test_a_bug_of_the_generator_is_raised_not_counted() -> None:
    async with running(predicts) as (_, run):
        run.reader = lambda _: None  # type: ignore[assignment, return-value]
        with pytest.raises(ExceptionGroup):
            await run.open_loop([0.0])

"""Clients that hold on to a connection: they do not read, do not finish their headers or body, or never begin."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator

import pytest
from structlog.testing import capture_logs

from core_engine.contracts import GenerateRequest, Reason, TokenDelta
from online.access.open_connections import EXTRA
from tests.core_engine.predictors.doubles import FakeEngine
from tests.online.access.conftest import CHAT, PREDICT, Guard
from tests.online.access.serving import Bounded, serving
from tests.online.conftest import TEXT

LONG = 3_000  # tokens: some hundred kilobytes of events
HEAD = "POST {path} HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
STREAM = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "Say something."}]})


def request(path: str, body: str) -> bytes:
    return (HEAD.format(path=path, length=len(body)) + "\r\n" + body).encode()


async def until_idle(served: Bounded) -> None:
    while served.door.services.state.in_flight:  # noqa: ASYNC110 - nobody tells the end of a request
        await asyncio.sleep(0)


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Until the door closes the connection; a reset is an end too."""
    read = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1024):
            read += piece
    return read


# -- readers


def take_turns(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tokens others may run, as with an engine in a process of its own."""
    generate = engine.generate

    async def taking_turns(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        async with contextlib.aclosing(generate(request)) as deltas:
            async for delta in deltas:
                await asyncio.sleep(0)
                yield delta

    monkeypatch.setattr(engine, "generate", taking_turns)


async def test_a_client_that_does_not_read_has_its_generation_aborted_with_a_reason(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guard(needs_key=False, slow_reader_s=0.2) as door, serving(door) as served:
        engine = door.door.engine
        take_turns(engine, monkeypatch)
        engine.tokens = tuple(door.services.tokenizer.encode(TEXT)) * LONG
        with capture_logs() as logs:
            reader, writer = await served.connect()
            writer.write(request(CHAT, STREAM))
            await writer.drain()
            await engine.aborted.wait()
            await until_idle(served)
        (line,) = [line for line in logs if line["event"] == "request"]
        assert (line["cut"], line["status"], line["finish_reason"]) == ("slow_reader", 499, "abort")
        assert line["completion_tokens"] < len(engine.tokens)
        assert served.cuts == ["slow_reader"]
        assert [fact.reason for fact in door.door.facts()] == [Reason.SLOW_READER]
        assert door.services.state.streams == door.services.gate.quotas.streams("local") == 0
        ended = {"model_name": "tiny", "pool": "interactive", "finished_reason": "abort", "reason": "slow_reader"}
        assert door.services.metrics.registry.get_sample_value("headrace_generations_total", ended) == 1
        assert b"[DONE]" not in await all_of(reader)
        writer.close()


async def test_what_waits_for_a_client_that_does_not_read_is_bounded(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is not read on: a few buffers are filled, and nothing is generated into memory."""
    async with guard(needs_key=False, slow_reader_s=0.2) as door, serving(door) as served:
        engine = door.door.engine
        take_turns(engine, monkeypatch)
        engine.tokens = tuple(door.services.tokenizer.encode("x")) * 100_000
        _, writer = await served.connect()
        writer.write(request(CHAT, STREAM))
        await engine.aborted.wait()
        await until_idle(served)
        shown = door.services.metrics.registry.get_sample_value
        labels = {"model_name": "tiny", "pool": "interactive", "kind": "completion"}
        num_tokens = shown("headrace_tokens_total", labels)
        assert num_tokens is not None
        assert 0 < num_tokens < 5_000  # of some 200 bytes each
        writer.close()


async def test_a_client_that_reads_gets_everything_however_long(guard: Guard) -> None:
    async with guard(needs_key=False, slow_reader_s=30.0) as door, serving(door) as served:
        engine = door.door.engine
        engine.tokens = tuple(door.services.tokenizer.encode("x")) * LONG
        reader, writer = await served.connect()
        writer.write(request(CHAT, STREAM))
        events = b""
        while b"[DONE]" not in events[-100:]:
            events += await reader.readexactly(1)
            events += await reader.read(512)
        assert events.count(b'"content":"x"') == LONG
        assert served.cuts == []
        writer.close()


# -- heads


async def test_headers_that_do_not_come_are_a_408_and_the_connection_ends(guard: Guard) -> None:
    async with guard(needs_key=False, head_timeout_s=0.5) as door, serving(door) as served:
        reader, writer = await served.connect()
        writer.write(b"POST /v1/predict/delay HTTP/1.1\r\nHost: do")
        reply = await all_of(reader)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"urn:headrace:problem:slow_head" in reply
        assert served.cuts == ["slow_head"]
        writer.close()


async def test_a_connection_on_which_nothing_comes_ends_without_a_word(guard: Guard) -> None:
    async with guard(needs_key=False, head_timeout_s=0.5) as door, serving(door) as served:
        reader, writer = await served.connect()
        assert await all_of(reader) == b""
        assert served.cuts == []
        writer.close()


async def test_headers_that_never_end_are_cut_off(guard: Guard) -> None:
    async with guard(needs_key=False, max_header_bytes=2048) as door, serving(door) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Endless: ")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and not served.cuts:
                writer.write(b"x" * 512)
                await writer.drain()
                await asyncio.sleep(0)
        await all_of(reader)
        assert served.cuts == ["large_head"]
        writer.close()


async def test_a_slow_head_behind_a_stream_is_no_answer_in_the_middle_of_it(guard: Guard) -> None:
    async with guard(needs_key=False, head_timeout_s=0.5) as door, serving(door) as served:
        door.door.engine.hold = asyncio.Event()
        reader, writer = await served.connect()
        writer.write(request(CHAT, STREAM))
        begun = await reader.readuntil(b'"role":"assistant"')
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Half: ")
        rest = await all_of(reader)
        assert b"200 OK" in begun
        assert b"HTTP/1.1" not in rest
        await until_idle(served)
        assert door.services.state.streams == 0
        writer.close()


async def test_requests_on_one_connection_are_each_given_their_time(guard: Guard) -> None:
    async with guard(needs_key=False, head_timeout_s=30.0) as door, serving(door) as served:
        reader, writer = await served.connect()
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: ")
            await writer.drain()
            writer.write(b"door\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b'{"status":"alive"}')
        assert served.cuts == []
        writer.close()


# -- too many


NEVER = 1e9
PROBE = b"GET /healthz HTTP/1.1\r\nHost: door\r\n\r\n"


async def occupied(served: Bounded) -> asyncio.StreamWriter:
    """A connection whose request is under way until the engine goes on."""
    _, writer = await served.connect()
    writer.write(request(CHAT, STREAM))
    begun = served.door.services.state.in_flight + 1
    while served.door.services.state.in_flight < begun:  # noqa: ASYNC110 - nobody tells the begin of a request
        await asyncio.sleep(0)
    return writer


async def test_past_the_bound_a_request_is_a_503_in_its_route_s_shape_and_the_connection_ends(guard: Guard) -> None:
    async with guard(needs_key=False, max_connections=1) as door, serving(door, NEVER) as served:
        door.door.engine.hold = asyncio.Event()
        writer = await occupied(served)
        for path, said in ((PREDICT, b"urn:headrace:problem:too_many_connections"), (CHAT, b'"type":"server_error"')):
            reader, late = await served.connect()
            late.write(request(path, "{}"))
            reply = await all_of(reader)
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in reply
            assert b"connection: close\r\n" in reply
            assert said in reply
            late.close()
        cut = {"reason": "too_many_connections"}
        assert door.services.metrics.registry.get_sample_value("headrace_connections_cut_total", cut) == 2
        writer.close()


async def test_past_the_bound_a_probe_is_answered(guard: Guard) -> None:
    async with guard(needs_key=False, max_connections=2) as door, serving(door, NEVER) as served:
        door.door.engine.hold = asyncio.Event()
        writers = [await occupied(served) for _ in range(2)]
        reader, probe = await served.connect()
        probe.write(PROBE)
        reply = await all_of(reader)
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in reply
        for writer in (*writers, probe):
            writer.close()


async def test_an_idle_connection_makes_room_for_one_that_comes(guard: Guard) -> None:
    async with guard(needs_key=False, max_connections=2) as door, serving(door, 0.0) as served:
        door.door.engine.hold = asyncio.Event()
        busy = await occupied(served)
        idle_reader, idle = await served.connect()
        idle.write(PROBE)
        await idle_reader.readuntil(b'{"status":"alive"}')
        reader, newcomer = await served.connect()
        newcomer.write(PROBE)
        reply = await reader.readuntil(b'{"status":"alive"}')
        assert b"connection: close" not in reply
        assert await all_of(idle_reader) == b""
        assert served.cuts == ["idle"]
        assert door.services.state.in_flight == 1, "a request under way is never cut off for another"
        for writer in (busy, idle, newcomer):
            writer.close()


async def test_of_many_that_come_and_ask_for_nothing_the_first_is_told_why_it_ends(guard: Guard) -> None:
    async with guard(needs_key=False, max_connections=1) as door, serving(door, NEVER) as served:
        clients = [await served.connect() for _ in range(1 + EXTRA + 1)]
        reply = await all_of(clients[1][0])
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in reply
        assert served.cuts == ["too_many_connections"]
        for _, writer in clients:
            writer.close()


# -- bodies


async def test_a_body_that_does_not_come_is_a_408_and_the_connection_ends(guard: Guard) -> None:
    async with guard(needs_key=False, body_timeout_s=0.1) as door, serving(door) as served:
        reader, writer = await served.connect()
        writer.write((HEAD.format(path=PREDICT, length=100) + "\r\n{").encode())
        reply = await all_of(reader)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"urn:headrace:problem:body_too_slow" in reply
        assert b"connection: close" in reply
        writer.close()


async def test_a_body_that_trickles_has_no_more_time_than_one_that_stops(guard: Guard) -> None:
    async with guard(needs_key=False, body_timeout_s=0.2) as door, serving(door) as served:
        reader, writer = await served.connect()
        writer.write((HEAD.format(path=CHAT, length=10**6) + "\r\n").encode())
        replied = asyncio.create_task(all_of(reader))
        with contextlib.suppress(ConnectionError):
            while not replied.done():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0)
        assert b'"code":"body_too_slow"' in await replied
        writer.close()

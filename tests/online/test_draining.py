"""A door that is told to go finishes what it has begun, says so to probes, and takes nothing new."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

import httpx
import uvicorn

from headrace.door import DrainingServer
from tests.online.conftest import TEXT, DoorUnderTest

BODY: Any = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "Say something."}]}


async def test_a_stream_in_flight_ends_whole_while_new_work_is_refused(door: DoorUnderTest) -> None:
    door.engine.hold = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(door.app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1)
        server = DrainingServer(config, door.services.state, drain_s=30.0)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with (
            httpx.AsyncClient(base_url=url, timeout=30) as http,
            http.stream("POST", "/v1/chat/completions", json=BODY) as reply,
        ):
            events = reply.aiter_lines()
            assert "assistant" in await anext(events)

            server.handle_exit(signal.SIGTERM, None)
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "draining")
            refused = await http.post("/v1/chat/completions", json=BODY)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert not serving.done()

            door.engine.hold.set()
            rest = [line async for line in events]
            assert rest[-2] == "data: [DONE]"
            assert '"finish_reason":"stop"' in "".join(rest)
            assert sum(TEXT[0] in line for line in rest) >= 1
        await serving
    assert door.services.state.in_flight == 0

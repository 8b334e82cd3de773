"""An HTTP/1.1 server of a few lines, whose answers a test writes byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.loadgen.connections import Address


@dataclass
class Asked:
    """One request as the server read it; `reply` goes out as it is written."""

    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter

    def json(self) -> Any:
        return json.loads(self.body)

    def reply(self, body: bytes, status: int = 200, *headers: str) -> None:
        lines = (f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers)
        self.writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)

    def reply_json(self, body: object, status: int = 200) -> None:
        self.reply(json.dumps(body).encode(), status)

    def stream(self, *events: str) -> None:
        """Server-sent events, each in a chunk of its own."""
        self.writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            data = f"data: {event}\n\n".encode()
            self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.writer.write(b"0\r\n\r\n")


Handle = Callable[[Asked], Awaitable[None]]


@dataclass
class Server:
    """`open` connections now, and all that were ever `opened`."""

    handle: Handle
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    opened: int = 0
    open: int = 0
    asked: list[Asked] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.address.host}:{self.address.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers["content-length"]))
                self.asked.append(Asked(head[0].split()[1], headers, body, writer))
                await self.handle(self.asked[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[Server]:
    """A server on a port of its own. `handle` answers, or does not."""
    made = Server(handle)
    tasks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):  # the end of the test, which asyncio would log
            await made.serve(reader, writer)

    listener = await asyncio.start_server(serve, made.address.host, 0)
    made.address = Address(made.address.host, listener.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


PREDICTION = {"rung": "model", "degraded": False, "reason": None, "usage": {"batch_size": 2}, "value": 0.5}


async def predicts(asked: Asked) -> None:
    asked.reply_json(PREDICTION)

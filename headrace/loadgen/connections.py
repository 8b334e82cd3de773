"""Keep-alive HTTP/1.1 connections, bounded in number, one exchange at a time on each.

A general client takes several times the CPU, which the generator, on the server's own cores, would take from what it
measures. It follows no redirects, keeps no cookies, and sends nothing a second time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from core_engine.errors import ConfigurationError

OnData: TypeAlias = Callable[[bytes], None]


class Failed(Exception):
    """A request without a good answer. `kind` is one of a few words, so that failures are counted by it."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Address:
    """A server's base URL, taken apart. `path` stands before every endpoint."""

    host: str
    port: int
    path: str = ""
    tls: bool = False

    def __str__(self) -> str:
        """As a Host header names it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises `ConfigurationError` for what is no http or https URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigurationError(f"--url {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"--url {url!r}, expected http://HOST:PORT or https://HOST:PORT")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), tls)


class Connection(asyncio.Protocol):
    """One connection. The methods without a docstring are asyncio's and httptools' to call."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[int] | None = None
        self._on_data: OnData = _unasked

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, on_data: OnData) -> int:
        """Send and wait for the whole answer; its status. `on_data` sees the body's pieces as they arrive.

        Raises:
            Failed: `disconnected` or `not_http`. Cancelled, it leaves the connection in no state to go on with.
        """
        if self._transport is None or self._transport.is_closing():
            raise Failed("disconnected", "the server closed the connection before the request was sent")
        self._on_data = on_data
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(Failed("not_http", f"{type(error).__name__}: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(Failed("disconnected", str(exc or "the server closed the connection before its answer was whole")))

    def on_body(self, body: bytes) -> None:
        self._on_data(body)

    def on_message_complete(self) -> None:
        reply, self._reply = self._reply, None
        if not self._parser.should_keep_alive() or reply is None:
            self.close()
        if reply is not None and not reply.done():
            reply.set_result(self._parser.get_status_code())

    def _fail(self, failed: Failed) -> None:
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_exception(failed)


def _unasked(data: bytes) -> None:
    """Bytes that answer no request; the connection is closed for them."""


class ConnectionPool:
    """At most `limit` connections to one address; who finds none free waits for one, first come first served.

    `num_opened`, `num_waits` and `peak` (in use at once) are for the report.
    """

    def __init__(self, address: Address, limit: int) -> None:
        self.address = address
        self.limit = limit
        self.num_opened = self.num_waits = self.in_use = self.peak = 0
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if address.tls else None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one exchange; closed if that does not end well.

        Raises:
            Failed: `connect`.
        """
        self.num_waits += self._free.locked()
        async with self._free:
            self.in_use += 1
            self.peak = max(self.peak, self.in_use)
            connection = None
            try:
                connection = self._take_idle() or await self._open()
                yield connection
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            else:
                self._idle.append(connection)
            finally:
                self.in_use -= 1

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> Connection | None:
        """The one used last: few stay warm at a low rate, as in life."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _open(self) -> Connection:
        loop, address = asyncio.get_running_loop(), self.address
        try:
            _, connection = await loop.create_connection(Connection, address.host, address.port, ssl=self._tls)
        except OSError as error:
            raise Failed("connect", f"{address}: {error}") from None
        self.num_opened += 1
        return connection

"""One connection to one Redis, shared by all requests of a process; replies come in the order of the commands.

Nobody waits for a connection from a pool, and a request that is given up leaves its replies to be read and dropped in
their turn, so that none is ever taken for another's. The library makes the connection (address, TLS, credentials) and
hands it over: its own pipeline costs the event loop more than the reads themselves (500 hashes of 50 numbers, 2 cores
of Zen 4: 6.7 ms, and 3.1 ms by this link with every value decoded; `benchmarks/features/online.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import hiredis
import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from core_engine.errors import StoreUnavailable

Command: TypeAlias = tuple[str | bytes | int, ...]
Pack: TypeAlias = Callable[[Command], bytes]
Invalidate: TypeAlias = Callable[[Sequence[bytes] | None], None]
INCOMPLETE: Final = object()
PACK: Final[Pack] = hiredis.pack_command  # type: ignore[assignment]  # its stub says one element; it takes any number

log = structlog.get_logger(__name__)


class Answer(NamedTuple):
    """Replies in the order of the commands, a refusal (`ResponseError`) among them, and how many trips they took.

    `hedges` of the trips asked a second time, on another connection.
    """

    replies: list[Any]
    round_trips: int
    hedges: int = 0


class Link(Protocol):
    """Where commands go: one server, or the nodes of a cluster."""

    async def ask(self, commands: Sequence[Command]) -> Answer:
        """Sends all at once. Raises `StoreUnavailable`; some may have been carried out then."""
        ...

    async def aclose(self) -> None: ...


class Watch(Protocol):
    """What goes on beside one question until it is answered."""

    @property
    def hedges(self) -> int:
        """How often the question was asked again elsewhere; final once `end` was called."""
        ...

    def end(self) -> None: ...


class Hedging(Protocol):
    """Asks a slow question a second time: `hedge.Hedge`."""

    def watch(self, answered: asyncio.Future[list[Any]], commands: Sequence[Command]) -> Watch:
        """May answer `answered` itself, once; the wire passes over what is answered already."""
        ...

    async def aclose(self) -> None: ...


class LinkLost(Exception):
    """The connection ended with the request in it."""


@dataclass(slots=True)
class _Asked:
    answered: asyncio.Future[list[Any]]
    num_replies: int
    at_s: float
    replies: list[Any] = field(default_factory=list)


class Wire(asyncio.Protocol):
    """An open connection. A server that says nothing for `patience_s` is given up with all that waits for it."""

    def __init__(self, connection: AbstractConnection, patience_s: float, invalidate: Invalidate | None) -> None:
        assert connection._writer is not None, "the connection is open"
        self._writer = connection._writer  # kept: it closes its transport when it is collected
        self.is_lost = self._writer.transport.is_closing()
        self.closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader(notEnoughData=INCOMPLETE, replyError=ResponseError)
        self._waiting: deque[_Asked] = deque()
        self._patience_s = patience_s
        self._invalidate = invalidate
        self._watch: asyncio.TimerHandle | None = None
        connection._writer = connection._reader = None
        self._writer.transport.set_protocol(self)

    def ask(self, packed: bytes, num_replies: int) -> asyncio.Future[list[Any]]:
        """The replies to `num_replies` commands; the future raises `LinkLost`."""
        asked = _Asked(self._loop.create_future(), num_replies, self._loop.time())
        if self.is_lost:
            asked.answered.set_exception(LinkLost("the connection was closed"))
            return asked.answered
        self._waiting.append(asked)
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience_s, self._check_patience)
        self._writer.transport.write(packed)
        return asked.answered

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        try:
            while (reply := self._parser.gets()) is not INCOMPLETE:
                if type(reply) is hiredis.PushNotification:
                    self._pushed(reply)
                else:
                    self._replied(reply)
        except hiredis.ProtocolError:
            self.abort()

    def _replied(self, reply: Any) -> None:
        asked = self._waiting[0]
        asked.replies.append(reply)
        if len(asked.replies) == asked.num_replies:
            self._waiting.popleft()
            if not asked.answered.done():
                asked.answered.set_result(asked.replies)

    def _pushed(self, message: list[Any]) -> None:
        if message[0] == b"invalidate" and self._invalidate is not None:
            self._invalidate(message[1])

    def _check_patience(self) -> None:
        self._watch = None
        if not self._waiting:
            return
        until_s = self._waiting[0].at_s + self._patience_s
        if self._loop.time() < until_s:
            self._watch = self._loop.call_at(until_s, self._check_patience)
        else:
            self.abort()

    def abort(self) -> None:
        self._writer.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._watch is not None:
            self._watch.cancel()
        for asked in self._waiting:
            if not asked.answered.done():
                asked.answered.set_exception(LinkLost(f"the connection was lost: {error or 'closed by the server'}"))
        self._waiting.clear()
        if self._invalidate is not None:
            self._invalidate(None)
        self.closed.set()


class NodeLink:
    """A link to one server: connects at the first request, and again after a loss.

    `make` gives a connection of the library that is not open yet. With `invalidate`, the server is asked to tell which
    keys that were read here have changed; None stands for all of them, after a loss too. With `hedging`, which only
    questions that may be asked twice can have, a slow one is asked elsewhere as well.
    """

    def __init__(
        self,
        make: Callable[[], AbstractConnection],
        patience_s: float,
        invalidate: Invalidate | None = None,
        hedging: Hedging | None = None,
    ) -> None:
        self._make = make
        self._patience_s = patience_s
        self._invalidate = invalidate
        self._hedging = hedging
        self._wire: Wire | None = None
        self._opening: asyncio.Task[Wire] | None = None

    async def ask(self, commands: Sequence[Command]) -> Answer:
        """As `Link.ask`. An open connection may have outlived its server, so that a loss is followed by one new try."""
        if not commands:
            return Answer([], 0)
        packed = b"".join(map(PACK, commands))
        if self._wire is not None and not self._wire.is_lost:
            try:
                return await self._answer(self._wire.ask(packed, len(commands)), commands)
            except LinkLost:
                pass
        wire = await self._connected()
        try:
            return Answer(await wire.ask(packed, len(commands)), 1)
        except LinkLost as error:
            raise StoreUnavailable(f"online store: {error}") from error

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._wire is not None:
            self._wire.abort()
            await self._wire.closed.wait()
        if self._hedging is not None:
            await self._hedging.aclose()

    async def _answer(self, answered: asyncio.Future[list[Any]], commands: Sequence[Command]) -> Answer:
        """What comes first: the wire's replies or, once they are slow, those of the hedge."""
        if self._hedging is None:
            return Answer(await answered, 1)
        watch = self._hedging.watch(answered, commands)
        try:
            replies = await answered
        finally:
            watch.end()
        return Answer(replies, 1 + watch.hedges, watch.hedges)

    async def _connected(self) -> Wire:
        """The open connection. Requests that come together share one attempt, which none of them can cancel."""
        if self._wire is not None and not self._wire.is_lost:
            return self._wire
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[Wire]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._wire = opening.result()

    async def _open(self) -> Wire:
        connection = self._make()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            if self._invalidate is not None:
                await _track(connection)
            return Wire(connection, self._patience_s, self._invalidate)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"online store: {type(error).__name__}: {error}") from error
        finally:
            await connection.disconnect(nowait=True)  # what `Wire` took is no longer the library's to close


async def _track(connection: AbstractConnection) -> None:
    """Ask for invalidations; a server that refuses leaves the cache to its own TTL, and says so in the log."""
    await connection.send_command("CLIENT", "TRACKING", "ON")
    try:
        await connection.read_response()
    except ResponseError as error:
        log.warning("feature_cache_untracked", error=str(error))

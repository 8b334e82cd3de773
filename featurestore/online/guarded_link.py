"""A link behind a circuit breaker: a store that does not answer costs a few requests their wait, and the others none.

Whoever waits for a read has a deadline of his own, so that the breaker has a timer of its own: a question that is not
answered within `slow_s` is a failure, whether somebody still waits for it or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from core_engine.breaker import Breaker
from core_engine.errors import StoreBreakerOpen, StoreUnavailable
from featurestore.online.link import Answer, Command, Link


class GuardedLink:
    """`link` as long as `breaker` allows it. Several links to one server share its breaker."""

    def __init__(self, link: Link, breaker: Breaker, slow_s: float) -> None:
        self._link = link
        self._breaker = breaker
        self._slow_s = slow_s

    async def ask(self, commands: Sequence[Command]) -> Answer:
        """As `Link.ask`. Raises `StoreBreakerOpen` at once while the breaker is open."""
        if not self._breaker.allow():
            raise StoreBreakerOpen("online store: it has not answered of late, and is asked again in a moment")
        patience = _Patience(self._breaker, self._slow_s)
        try:
            answer = await self._link.ask(commands)
        except StoreUnavailable:
            self._breaker.failed()
            raise
        finally:
            patience.end()
        self._breaker.succeeded()
        return answer

    async def aclose(self) -> None:
        await self._link.aclose()


class _Patience:
    """Of one question. When the time is up, the loop first reads what has come: a loop that was busy with other things
    has let an answer lie, and that is no fault of the store."""

    __slots__ = ("_breaker", "_handle", "_loop", "_passes")

    def __init__(self, breaker: Breaker, slow_s: float) -> None:
        self._breaker = breaker
        self._loop = asyncio.get_running_loop()
        self._passes = 3  # of the loop: to read the sockets, to wake who waits for an answer, and to let him end this
        self._handle: asyncio.Handle = self._loop.call_later(slow_s, self._time_is_up)

    def end(self) -> None:
        self._handle.cancel()

    def _time_is_up(self) -> None:
        if self._passes:
            self._passes -= 1
            self._handle = self._loop.call_soon(self._time_is_up)
        else:
            self._breaker.failed()

"""What an event does to the windows: worked out per event, applied per delivery, in the order of its partition.

Exactly once: an event's coordinates are kept with the tile that it is in, in one atomic step. A store that is away is
waited for, because an event must not be finished without its place in the windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import structlog

from core_engine.errors import StoreUnavailable
from core_engine.metrics import Metrics
from featurestore.windows.batches import WindowEvent
from featurestore.windows.state import Applied
from featurestore.windows.store import WindowStore
from streaming.events import Event
from streaming.offsets import Partition
from streaming.transport import Record

T = TypeVar("T")
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)

log = structlog.get_logger(__name__)


class WindowEffects:
    """The windows that the events of one topic feed."""

    def __init__(self, store: WindowStore, topic: str, metrics: Metrics) -> None:
        self._store = store
        self._plans = store.plans(topic)
        self._metrics = metrics

    def of(self, record: Record, event: Event) -> tuple[WindowEvent, ...]:
        """What `event` is for each window. Raises `InvalidRequest` where it lacks a field, or has a wrong one."""
        return tuple(
            WindowEvent(
                view=plan.view.name,
                key=plan.key_of(event.fields),
                event_time=event.event_time,
                amounts=plan.amounts(event.fields),
                source=record.partition.name,
                offset=record.offset,
            )
            for plan in self._plans
        )

    async def apply(self, events: Sequence[WindowEvent]) -> list[Applied]:
        """What became of each; waits for the store as long as it takes."""
        if not events:
            return []
        outcomes = await self._until_stored(lambda: self._store.apply(events))
        for event, outcome in zip(events, outcomes, strict=True):
            self._metrics.window_events.labels(event.view, outcome).inc()
        return outcomes

    async def advance(self, progress: Mapping[Partition, datetime]) -> None:
        """Every window has seen all events of these partitions up to their instant."""
        by_source = {partition.name: at for partition, at in progress.items()}
        for plan in self._plans if by_source else ():
            await self._until_stored(lambda name=plan.view.name: self._store.advance(name, by_source))  # type: ignore[misc]

    async def _until_stored(self, attempt: Callable[[], Awaitable[T]]) -> T:
        for delay_s in _delays():
            try:
                result = await attempt()
            except StoreUnavailable as error:
                if delay_s == RETRY_S[0]:
                    log.warning("windows_wait_for_the_store", error=str(error))
                await asyncio.sleep(delay_s)
            else:
                if delay_s != RETRY_S[0]:
                    log.info("windows_go_on")
                return result
        raise AssertionError("the delays have no end")


def _delays() -> Iterable[float]:
    yield from RETRY_S
    while True:
        yield RETRY_S[-1]

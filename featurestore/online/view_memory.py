"""What a view takes in Redis: entities counted, bytes sampled over a paced scan that never holds the server long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from featurestore.definitions import FeatureView
from featurestore.keys import view_prefix
from featurestore.online.connection import links_of
from featurestore.online.link import Command, Link
from featurestore.online.server_functions import refusal

PAGE_KEYS: Final = 1_000  # that one SCAN looks at: well under a millisecond of the server
SAMPLED_KEYS: Final = 10  # of a page, whose sizes stand for all of its keys


@dataclass(frozen=True, slots=True)
class ViewMemory:
    """`bytes` with the server's own overhead, of `keys` keys, estimated from `sampled` of them (all of a small view).

    What belongs to no entity, such as how far a stream has come, is left out. While the server resizes its table, or a
    cluster moves slots, a key may be counted twice.
    """

    entities: int = 0
    keys: int = 0
    bytes: int = 0
    sampled: int = 0

    @property
    def bytes_per_entity(self) -> float:
        """0 where there is no entity."""
        return self.bytes / self.entities if self.entities else 0.0

    def __add__(self, other: ViewMemory) -> ViewMemory:
        return ViewMemory(
            self.entities + other.entities,
            self.keys + other.keys,
            self.bytes + other.bytes,
            self.sampled + other.sampled,
        )


async def view_memory(client: Redis, view: FeatureView, pause_s: float = 0.0) -> ViewMemory:
    """The memory of a view's entities; `pause_s` is waited after each look at `PAGE_KEYS` keys, whosever they are.

    Raises:
        StoreUnavailable: Redis away, or refusing.
    """
    pattern, total = f"{view_prefix(view.name, view.version)}{{*", ViewMemory()
    for link in await links_of(client).primaries():
        cursor = b"0"
        while True:
            [(cursor, keys)] = await _replies(link, [("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE_KEYS)])
            total += await _page(link, keys)
            if cursor == b"0":
                break
            await asyncio.sleep(pause_s)
    return total


async def _page(link: Link, keys: list[bytes]) -> ViewMemory:
    asked: list[Command] = [("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys[:SAMPLED_KEYS]]
    sizes = [size for size in await _replies(link, asked) if size is not None]  # None: it expired in between
    if not sizes:
        return ViewMemory()
    num_bytes = sum(sizes) * len(keys) // len(sizes)
    return ViewMemory(sum(key.endswith((b"}", b"}:tiles")) for key in keys), len(keys), num_bytes, len(sizes))


async def _replies(link: Link, commands: list[Command]) -> list[Any]:
    replies = (await link.ask(commands)).replies
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise refusal(reply)
    return replies

"""What the online store itself says it holds of a view: written after the rows, lost with them.

The registry survives a restart of Redis, the rows may not. So a run trusts the lesser of both: a store that was emptied
has no mark and gets everything again, one that came back from an older snapshot has an older mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from redis.asyncio import Redis

from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.instants import from_us, to_us
from featurestore.keys import marks_key
from featurestore.lifecycle.watermarks import Cursor
from featurestore.online.server_functions import pipelined

WATERMARK: Final = b"watermark"


@dataclass(frozen=True, slots=True)
class Held:
    """The mark of the last run that was finished, and those of the shards of unfinished ones, by token and shard."""

    watermark: datetime | None = None
    cursors: Mapping[tuple[str, int], Cursor] = field(default_factory=dict)


class Marks:
    """One hash per view version. Raises `StoreUnavailable` where Redis is away."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def read(self, view: FeatureView) -> Held:
        """Raises `UnreadablePayload` for a hash that this store did not write."""
        [fields] = await pipelined(self._client, [("HGETALL", marks_key(view))])
        try:
            return _held(dict(fields))
        except (ValueError, OverflowError):
            raise UnreadablePayload(
                f"feature view {view.name}: the hash {marks_key(view)!r} was not written by this store; delete it, and"
                " everything will be materialized again"
            ) from None

    async def save(self, view: FeatureView, token: str, shard: int, cursor: Cursor) -> None:
        name = f"{token}/{shard}"
        await pipelined(self._client, [("HSET", marks_key(view), name, f"{cursor.known_us}/{cursor.position}")])

    async def finish(self, view: FeatureView, watermark: datetime) -> None:
        """All rows known at `watermark` are held. The marks of shards go: that of the whole is further."""
        key, at_us = marks_key(view), to_us(watermark, "watermark")
        await pipelined(self._client, [("DEL", key), ("HSET", key, WATERMARK, at_us)])

    async def drop(self, view: FeatureView, token: str, num_shards: int) -> None:
        """The shards of a run that moves no watermark."""
        names = [f"{token}/{shard}" for shard in range(num_shards)]
        await pipelined(self._client, [("HDEL", marks_key(view), *names)])


def _held(fields: dict[bytes, bytes]) -> Held:
    watermark = fields.pop(WATERMARK, None)
    cursors = {}
    for name, value in fields.items():
        token, shard = name.decode().split("/")
        known_us, position = value.split(b"/")
        cursors[token, int(shard)] = Cursor(int(known_us), int(position))
    return Held(None if watermark is None else from_us(int(watermark)), cursors)

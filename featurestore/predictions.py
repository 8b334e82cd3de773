"""Prediction generations: written beside the served one, checked, then published by one flip of one pointer.

Batch jobs call this; doors and the ladder read through `prediction_reader`. Rollback, drift checks and collection come
with the batch issue: the pointer already names the previous generation, which stays for the retention.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from featurestore.generations import (
    FLIP,
    LIBRARY,
    SEAL,
    SEALED,
    WRITE,
    GenerationFault,
    Seal,
    Superseded,
    Value,
    encode_value,
    generation_key,
    pointer_key,
)
from featurestore.instants import to_us
from featurestore.online.server_functions import called, pipelined

CALL_ROWS: Final = 100  # one call holds the server for well under a millisecond, so that reads slip in between
CALLS_IN_FLIGHT: Final = 8  # calls in one pipeline; the next is sent when the server has answered: that is the pacing
ABANDONED_S: Final = 3_600.0  # a generation that nobody publishes disappears this long after its last write


@dataclass(frozen=True, slots=True)
class PredictionRow:
    """One row of a generation."""

    entity: str
    value: Value


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which generation is served, under which fence, and which was before; the empty one where nothing is published."""

    generation: str = ""
    fence: int = 0
    previous: str = ""


class PredictionStore:
    """Writes and publishes. `predictor` is the id of a version; a replaced generation stays for `retention_s`."""

    def __init__(self, client: Redis, retention_s: float) -> None:
        self._client = client
        self._retention_ms = round(retention_s * 1000)

    async def pointer(self, predictor: str) -> Pointer:
        """What is published now. Raises `StoreUnavailable`."""
        command = ("HMGET", pointer_key(predictor), "generation", "fence", "previous")
        (reply,) = await pipelined(self._client, [command])
        generation, fence, previous = reply
        return Pointer((generation or b"").decode(), int(fence or 0), (previous or b"").decode())

    async def write(self, predictor: str, generation: str, rows: AsyncIterable[Sequence[PredictionRow]]) -> int:
        """Write pages of rows into a generation of a new name; returns the entities added. A repeated one: last wins.

        Raises:
            StoreUnavailable: Redis away; what was written expires by itself.
            GenerationFault: the generation is sealed.
        """
        key, added, calls = generation_key(predictor, generation), 0, list[tuple[Any, ...]]()
        async for page in rows:
            for start in range(0, len(page), CALL_ROWS):
                calls.append(_write_call(key, page[start : start + CALL_ROWS]))
                if len(calls) == CALLS_IN_FLIGHT:
                    added += await self._send(generation, calls)
                    calls = []
        return added + await self._send(generation, calls)

    async def _send(self, generation: str, calls: Sequence[tuple[Any, ...]]) -> int:
        added = await called(self._client, LIBRARY, calls)
        if SEALED in added:
            raise _sealed(generation)
        return sum(added)

    async def seal(self, predictor: str, generation: str, num_predictions: int, as_of: datetime) -> None:
        """Close a generation for good, if it holds exactly `num_predictions`.

        Raises:
            GenerationFault: it does not, or was sealed before.
        """
        seal = msgspec.msgpack.encode(Seal(to_us(as_of, "as_of"), num_predictions))
        call = ("FCALL", SEAL, 1, generation_key(predictor, generation), num_predictions, seal)
        (held,) = await called(self._client, LIBRARY, [call])
        if held == SEALED:
            raise _sealed(generation)
        if held != num_predictions:
            raise GenerationFault(
                f"generation {generation} of {predictor} holds {held} predictions instead of {num_predictions}"
            )

    async def flip(self, predictor: str, generation: str, fence: int) -> Pointer:
        """Publish a sealed generation: one compare-and-set. Doing it again changes nothing. Returns the new pointer.

        Raises:
            Superseded: what is published has the same fence or a newer one.
            GenerationFault: the generation is not sealed, or is gone.
        """
        while True:
            held = await self.pointer(predictor)
            match await self._flip(predictor, held.generation, generation, fence):
                case b"flipped":
                    return await self.pointer(predictor)
                case b"fenced":
                    newer = await self.pointer(predictor)
                    raise Superseded(
                        f"generation {newer.generation} of {predictor} (fence {newer.fence}) is published and is not "
                        f"older than {generation} (fence {fence}); nothing was changed"
                    )
                case b"gone":
                    raise GenerationFault(f"generation {generation} of {predictor} is not sealed or has expired")
                case _:  # moved: another publisher came between; its fence was older, so look again
                    continue

    async def _flip(self, predictor: str, expected: str, generation: str, fence: int) -> bytes:
        keys = (pointer_key(predictor), generation_key(predictor, generation), generation_key(predictor, expected))
        call = ("FCALL", FLIP, len(keys), *keys, expected, generation, fence, self._retention_ms)
        (reply,) = await called(self._client, LIBRARY, [call])
        return bytes(reply)


def _sealed(generation: str) -> GenerationFault:
    return GenerationFault(f"generation {generation} is sealed: it never changes")


def _write_call(key: str, rows: Sequence[PredictionRow]) -> tuple[Any, ...]:
    pairs = [part for row in rows for part in (row.entity, encode_value(row.value))]
    assert all(row.entity for row in rows), "no entity has an empty key"
    return ("FCALL", WRITE, 1, key, round(ABANDONED_S * 1000), *pairs)

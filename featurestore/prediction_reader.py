"""Look-ups in published prediction generations, for doors and the ladder.

A view pins one generation for one request, so that two look-ups of it never mix two nights. It knows no jobs.
"""

from __future__ import annotations

import asyncio

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from core_engine.contracts import Deadline, ReadCost
from core_engine.errors import DeadlineExceeded
from core_engine.readers import StoredPrediction
from featurestore.codec import UnreadablePayload
from featurestore.generations import SEAL_FIELD, decode_seal, decode_value, generation_key, pointer_key
from featurestore.instants import Clock, from_us, utc_now
from featurestore.online.connection import links_of
from featurestore.online.server_functions import refusal


class OnlinePredictionReader:
    """Looks up published predictions; implements `core_engine.readers.PredictionReader`."""

    def __init__(self, client: Redis, clock: Clock = utc_now) -> None:
        self._client = client
        self._clock = clock

    def pinned(self, predictor: str, generation: str | None = None) -> PinnedPredictions:
        """A view for one request; of `generation` where one is named, which is how a writer reads back."""
        return PinnedPredictions(self._client, predictor, self._clock, generation)

    async def lookup(self, predictor: str, entity: str, deadline: Deadline) -> StoredPrediction | None:
        """A request of one look-up."""
        return await self.pinned(predictor).lookup(entity, deadline)


class PinnedPredictions:
    """One request's view: the generation that was current at its first look-up, whatever is published meanwhile.

    An entity that is not in it is a miss. Only where the whole generation is gone is the pointer read again, once in
    the life of the view; a view of a named generation is never moved.
    """

    def __init__(self, client: Redis, predictor: str, clock: Clock, generation: str | None) -> None:
        self._client = client
        self._predictor = predictor
        self._clock = clock
        self._may_repin = generation is None
        self.generation = generation

    async def lookup(self, entity: str, deadline: Deadline) -> StoredPrediction | None:
        """The value of `entity` in the pinned generation, or None.

        Raises:
            StoreUnavailable: Redis away. DeadlineExceeded: no answer in time.
            UnreadablePayload: a hash that this release cannot read.
        """
        try:
            async with asyncio.timeout(deadline.timeout()):
                return await self._lookup(entity)
        except TimeoutError:
            raise DeadlineExceeded("no answer from the online store within the deadline") from None

    async def _lookup(self, entity: str) -> StoredPrediction | None:
        pins = 0
        if self.generation is None:
            self.generation, pins = await self._current(), 1
        seal, value = await self._read(self.generation, entity)
        if seal is None and self._may_repin and self.generation:
            self._may_repin = False
            self.generation, pins = await self._current(), pins + 1
            seal, value = await self._read(self.generation, entity)
        if seal is None or value is None:
            return None
        return self._stored(seal, value, pins)

    async def _current(self) -> str:
        """The generation that the pointer names; "" where nothing is published."""
        (name,) = await self._hmget(pointer_key(self._predictor), b"generation")
        return (name or b"").decode()

    async def _read(self, generation: str, entity: str) -> list[bytes | None]:
        """The seal and the value; no seal: there is no such generation, and one that is not sealed is not there yet."""
        if not generation or not entity:
            return [None, None]
        return await self._hmget(generation_key(self._predictor, generation), SEAL_FIELD, entity.encode())

    async def _hmget(self, key: str, *fields: bytes) -> list[bytes | None]:
        (reply,) = (await links_of(self._client).reads.ask([("HMGET", key, *fields)])).replies
        if isinstance(reply, ResponseError):
            raise refusal(reply)
        return list(reply)

    def _stored(self, seal: bytes, value: bytes, pins: int) -> StoredPrediction:
        assert self.generation is not None
        try:
            as_of_us, decoded = decode_seal(seal).as_of_us, decode_value(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadablePayload(f"generation {self.generation} of {self._predictor}: {error}") from None
        age_s = (self._clock() - from_us(as_of_us)).total_seconds()
        cost = ReadCost(reads=pins + 1, hits=pins + 1, bytes=len(value), round_trips=pins + 1)
        return StoredPrediction(decoded, self.generation, max(0.0, age_s), cost)

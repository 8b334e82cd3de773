"""The port between the worker and a broker: what is handed over, and what the worker may ask for.

Two clients stand behind it: kafka-python (`kafka_transport`) and, later, confluent-kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from streaming.offsets import Partition


@dataclass(frozen=True, slots=True)
class Record:
    """One record with its coordinates, and the epoch under which it was taken."""

    partition: Partition
    offset: int
    epoch: int
    key: bytes | None
    value: bytes | None

    @property
    def coordinates(self) -> str:
        """topic/partition/offset: the name of the event for ever, whoever reads it and however often."""
        return f"{self.partition.name}/{self.offset}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records in the order of their partitions, or the partitions of which there was nothing more to read at `at`."""

    records: tuple[Record, ...] = ()
    caught_up: tuple[Partition, ...] = ()
    at: datetime | None = None


class Transport(Protocol):
    """A member of a consumer group on one topic, and a producer. Its methods are called on the worker's event loop."""

    async def start(self) -> None:
        """Connect, look that the topics exist, and begin to poll.

        Raises:
            BrokerUnavailable: no broker answers. ConfigurationError: a topic does not exist.
        """
        ...

    async def joined(self) -> None:
        """Wait until the group has given this member its share, which may be empty."""
        ...

    async def receive(self) -> Delivery:
        """The next delivery. Raises `BrokerUnavailable` where nothing will ever come any more."""
        ...

    def finish(self, record: Record) -> None:
        """All effects of `record` are in place: it may be committed, unless its partition has gone meanwhile."""
        ...

    def is_ours(self, record: Record) -> bool:
        """Whether the epoch of `record` still holds; if not, another member is given it again."""
        ...

    async def publish(self, topic: str, key: bytes, value: bytes) -> None:
        """Returns once the broker has the record; tried again within a bound.

        Raises:
            BrokerUnavailable: it was not taken within the bound.
        """
        ...

    async def close(self) -> None:
        """Stop polling, commit what is finished, leave the group."""
        ...

"""Which offsets may be committed: the highest contiguous finished one per partition, fenced by an epoch. Pure.

A partition gets a new epoch whenever it is assigned, revoked or lost. What was taken under an older epoch may finish
whenever it likes: it changes nothing any more, so a commit never goes back and never covers what a new owner works on.
Contiguous means: of the offsets that were taken; a log may have holes (compaction, transactions).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple


class Partition(NamedTuple):
    topic: str
    number: int

    @property
    def name(self) -> str:
        """As the windows name the source of an event."""
        return f"{self.topic}/{self.number}"


@dataclass(slots=True)
class _Owned:
    """One partition under one epoch. `taken` are the offsets from the first unfinished one on, ascending."""

    epoch: int
    taken: deque[int] = field(default_factory=deque)
    finished: set[int] = field(default_factory=set)
    next_offset: int | None = None  # behind the contiguous finished ones
    committed: int | None = None


class OffsetTracker:
    """Not safe for threads; its owner holds a lock."""

    def __init__(self) -> None:
        self._owned: dict[Partition, _Owned] = {}
        self._epochs = count(1)

    @property
    def num_outstanding(self) -> int:
        """Taken and not finished, under epochs that still hold."""
        return sum(len(owned.taken) - len(owned.finished) for owned in self._owned.values())

    def outstanding(self, partition: Partition) -> int:
        owned = self._owned.get(partition)
        return 0 if owned is None else len(owned.taken) - len(owned.finished)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """These are ours from here on, under new epochs."""
        for partition in partitions:
            self._owned[partition] = _Owned(next(self._epochs))

    def revoke(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """These are ours no more; returns the last commits that may be made for them."""
        partitions = list(partitions)
        due = {p: offset for p, offset in self.committable().items() if p in partitions}
        self.lose(partitions)
        return due

    def lose(self, partitions: Iterable[Partition]) -> None:
        """These were taken away: nothing of theirs may be committed."""
        for partition in partitions:
            self._owned.pop(partition, None)

    def take(self, partition: Partition, offset: int) -> int | None:
        """A record was handed over; returns the epoch under which it may be finished, None where it is not ours.

        An offset that was seen before means that the log, or our place in it, was set back: all begins anew.
        """
        owned = self._owned.get(partition)
        if owned is None:
            return None
        last = owned.taken[-1] if owned.taken else (owned.next_offset or 0) - 1
        if offset <= last:
            owned = self._owned[partition] = _Owned(next(self._epochs))
        owned.taken.append(offset)
        return owned.epoch

    def finish(self, partition: Partition, offset: int, epoch: int) -> bool:
        """All effects of a record are in place. False, and nothing changes, under an epoch that no longer holds."""
        owned = self._owned.get(partition)
        if owned is None or owned.epoch != epoch:
            return False
        if not owned.taken or offset < owned.taken[0]:
            return True  # finished before
        owned.finished.add(offset)
        while owned.taken and owned.taken[0] in owned.finished:
            owned.finished.remove(owned.taken[0])
            owned.next_offset = owned.taken.popleft() + 1
        return True

    def holds(self, partition: Partition, epoch: int) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and owned.epoch == epoch

    def committable(self) -> dict[Partition, int]:
        """By partition, the offset to commit (of the next record to read), where it lies past what was committed."""
        return {
            partition: owned.next_offset
            for partition, owned in self._owned.items()
            if owned.next_offset is not None and owned.next_offset > (owned.committed or 0)
        }

    def epochs(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self._owned[p].epoch for p in partitions if p in self._owned}

    def committed(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int]) -> None:
        """The broker took these commits, which were made under `epochs`."""
        for partition, offset in offsets.items():
            owned = self._owned.get(partition)
            if owned is not None and owned.epoch == epochs.get(partition):
                owned.committed = max(offset, owned.committed or 0)

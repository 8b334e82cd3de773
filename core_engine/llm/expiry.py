"""When sequences have to end: at their deadline, or when the queue may hold them no longer. A heap of instants."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from core_engine.contracts import FinishReason
from core_engine.llm.sequence import Sequence


class Expiry:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence, FinishReason]] = []
        self._numbers = itertools.count()

    def watch(self, sequence: Sequence, max_queue_s: float) -> None:
        """Watch a sequence's deadline, and until it starts how long it has waited."""
        self._push(sequence.deadline_s, sequence, FinishReason.DEADLINE)
        self._push(sequence.arrival_s + max_queue_s, sequence, FinishReason.SHED)

    def due(self, now: float) -> Iterator[tuple[Sequence, FinishReason]]:
        """Sequences that must end now, each once, with the reason."""
        while self._heap and self._heap[0][0] <= now:
            _, _, sequence, reason = heapq.heappop(self._heap)
            if _stands(sequence, reason):
                yield sequence, reason

    def next_s(self) -> float:
        """The next instant at which one may have to end."""
        while self._heap and not _stands(self._heap[0][2], self._heap[0][3]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def _push(self, at_s: float, sequence: Sequence, reason: FinishReason) -> None:
        if at_s < math.inf:
            heapq.heappush(self._heap, (at_s, next(self._numbers), sequence, reason))


def _stands(sequence: Sequence, reason: FinishReason) -> bool:
    return sequence.finish_reason is None and not (reason is FinishReason.SHED and sequence.has_started)

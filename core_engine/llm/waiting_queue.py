"""Who is next: the sequences of one pool that wait for a seat.

The next tenant is the one with the fewest weighted tokens served; within a tenant the most urgent sequence goes first.
A tenant that comes back after a pause begins at the level of the busy ones: idleness earns no credit.

Source: Sheng et al., "Fairness in Serving Large Language Models", 2024, section 4.1 (virtual token counter).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping

from core_engine.llm.sequence import Sequence

COMPLETION_WEIGHT = 2.0  # a decoded token next to one prefilled, as in the paper's evaluation

Entry = tuple[float, int, Sequence]  # urgency, number of the entry, sequence


class WaitingQueue:
    """`weights`: a tenant's share next to the others' (1 where it has none)."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.num_tokens = 0  # uncomputed ones of everything that waits
        self.num_pairs = 0  # attended ones of those tokens
        self.max_completion_tokens = 0  # the most that everything that waits may still bring
        self._weights = dict(weights or {})
        self._heaps: dict[str, list[Entry]] = {}
        self._entries: dict[str, int] = {}  # sequence id -> its valid entry; others are left over in the heaps
        self._served: dict[str, float] = {}
        self._busy: dict[str, int] = {}  # sequences of a tenant, waiting or in seats
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._entries

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait; the earlier its `urgent_s`, the sooner it is next among its tenant's."""
        number = next(self._numbers)
        self._entries[sequence.id] = number
        heapq.heappush(self._heaps.setdefault(sequence.tenant, []), (sequence.urgent_s, number, sequence))
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Let a sequence go, before any of its tokens is computed."""
        del self._entries[sequence.id]
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        new = sequence.num_uncomputed_tokens
        self.num_tokens += sign * new
        self.num_pairs += sign * (new * sequence.num_computed_tokens + new * (new + 1) // 2)
        self.max_completion_tokens += sign * (sequence.max_completion_tokens - sequence.num_completion_tokens)

    def arrived(self, tenant: str) -> None:
        """One more sequence of `tenant` in this pool."""
        if not self._busy.get(tenant):
            level = min((self._served[t] for t, count in self._busy.items() if count), default=0.0)
            self._served[tenant] = max(self._served.get(tenant, 0.0), level)
        self._busy[tenant] = self._busy.get(tenant, 0) + 1

    def left(self, tenant: str) -> None:
        """One sequence of `tenant` less in this pool."""
        self._busy[tenant] -= 1
        if not self._busy[tenant] and len(self._busy) > 1:
            del self._busy[tenant]

    def charge(self, tenant: str, weighted_tokens: float) -> None:
        """Count what a tenant was given."""
        self._served[tenant] = self._served.get(tenant, 0.0) + weighted_tokens / self._weights.get(tenant, 1.0)

    def candidates(self) -> Iterator[Sequence]:
        """Everything that waits, next first. What is charged meanwhile counts; entries may be removed."""
        taken: dict[str, list[Entry]] = {}
        open_tenants = [tenant for tenant, heap in self._heaps.items() if heap]
        try:
            while open_tenants:
                tenant = min(open_tenants, key=lambda t: self._served.get(t, 0.0))
                heap = self._heaps[tenant]
                if not heap:
                    open_tenants.remove(tenant)
                    continue
                entry = heapq.heappop(heap)
                if self._entries.get(entry[2].id) == entry[1]:
                    taken.setdefault(tenant, []).append(entry)
                    yield entry[2]
        finally:
            for tenant, entries in taken.items():
                for entry in entries:
                    if self._entries.get(entry[2].id) == entry[1]:
                        heapq.heappush(self._heaps[tenant], entry)
            for tenant in [t for t, heap in self._heaps.items() if not heap]:
                del self._heaps[tenant]

    def __iter__(self) -> Iterator[Sequence]:
        """Everything that waits, in no order."""
        for heap in self._heaps.values():
            for _, number, sequence in heap:
                if self._entries.get(sequence.id) == number:
                    yield sequence

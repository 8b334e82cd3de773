"""Will what runs, and one more, ever need more KV blocks than there are? Asked before a sequence takes a seat.

Each sequence grows by one token per step and gives everything back when it ends. The most blocks are needed just before
one of them ends, so looking at those instants is enough. How long a completion gets is told by those that ended before:
given how far it has come already, three of four get no further than the estimate.

Source: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", 2025, section 3.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

QUANTILE = 0.75
WINDOW = 512


class LengthHistory:
    """How much of their `max_tokens` completions use. Before anything has ended: all of it."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def ended(self, completion_tokens: int, max_tokens: int) -> None:
        ratio = completion_tokens / max_tokens
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        if len(self._recent) > WINDOW:
            oldest = self._recent.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]

    def remaining(self, completion_tokens: int, max_tokens: int) -> int:
        """Tokens that a completion of `completion_tokens` will still get, at least one."""
        if not max_tokens:
            return 0
        longer = bisect_right(self._sorted, completion_tokens / max_tokens)
        count = len(self._sorted) - longer
        ratio = self._sorted[longer + int(QUANTILE * count)] if count > 1 else 1.0
        return max(1, round(ratio * max_tokens) - completion_tokens)


@dataclass(frozen=True, slots=True)
class Holding:
    """One sequence: tokens that it has or is about to have, blocks held, those of them that others hold too."""

    num_tokens: int
    remaining: int
    num_blocks: int
    num_shared: int = 0


def peak_blocks(holdings: Iterable[Holding], num_held: int, block_size: int) -> float:
    """The most blocks that will be held at once. `num_held`: distinct blocks held now by these sequences.

    Fractions of a block are rounded up once per sequence.
    """
    rows = sorted(holdings, key=lambda h: -h.remaining)
    growth, released = 0.0, sum(h.num_blocks - h.num_shared for h in rows)
    peak = float(num_held)
    for alive, row in enumerate(rows, start=1):
        # at the instant when this one ends, those before it in the list are alive, those after it have left
        growth += row.num_tokens / block_size + 1 - row.num_blocks
        released -= row.num_blocks - row.num_shared
        peak = max(peak, num_held - released + growth + alive * row.remaining / block_size)
    return peak

"""An engine's counters over its restarts, as one client has seen them.

A snapshot counts since its engine started. When another engine comes, the last snapshot of the one before is kept and
what the new one counts goes on top, so that no count ever falls. What an engine did after the last snapshot that came
from it is not known to anybody, and not in here.
"""

from __future__ import annotations

from core_engine.contracts import Pool
from core_engine.llm.messages import Counters, Snapshot, added


class EngineTotals:
    def __init__(self) -> None:
        self._incarnation: str | None = None
        self._now = Snapshot()
        self._before = Snapshot()  # all engines before this one; only what counts is meant

    def see(self, incarnation: str | None, snapshot: Snapshot) -> None:
        """Take the newest snapshot of the engine that calls itself `incarnation`."""
        if incarnation != self._incarnation:
            self._before, self._incarnation = self.snapshot, incarnation
        self._now = snapshot

    @property
    def snapshot(self) -> Snapshot:
        """The sums, in a snapshot that holds nothing else: `step`, `counters` of every pool, `scoring`, `aborts`,
        `lost_spans`."""
        before, now = self._before, self._now
        nothing = Counters()
        return Snapshot(
            step=before.step + now.step,
            counters={p: before.counters.get(p, nothing) + now.counters.get(p, nothing) for p in Pool},
            scoring=before.scoring + now.scoring,
            aborts=added(before.aborts, now.aborts),
            lost_spans=before.lost_spans + now.lost_spans,
        )

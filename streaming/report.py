"""What one run of a stream worker did: counts by outcome, and the latency of the events that it scored."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from core_engine.contracts import Prediction
from featurestore.windows.state import Applied

KEPT = 100_000  # latencies: a worker may run for months


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """`n` events were scored and their predictions acknowledged. `p50_ms` to `max_ms` are from the poll loop's
    hand-over to the broker's acknowledgement, the wait for its turn in a backlog included; `scoring_p50_ms` and
    `scoring_p99_ms` from its turn on. `batch_sizes` counts events by the rows that shared their call of the model;
    `windows` counts by outcome, `dead_letters` by reason."""

    n: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    scoring_p50_ms: float | None
    scoring_p99_ms: float | None
    concurrency: int
    batch_sizes: dict[int, int]
    rungs: dict[str, int]
    reasons: dict[str, int]
    windows: dict[str, int]
    dead_letters: dict[str, int]
    fenced: int  # taken from us while they waited: another member scores them


@dataclass(slots=True)
class Tally:
    """Counts as the worker goes."""

    concurrency: int
    num_scored: int = 0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    scoring_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    batch_sizes: Counter[int] = field(default_factory=Counter)
    rungs: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    windows: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    fenced: int = 0

    def scored(self, prediction: Prediction, latency_s: float, scoring_s: float) -> None:
        self.num_scored += 1
        self.latencies_s.append(latency_s)
        self.scoring_s.append(scoring_s)
        self.rungs[str(prediction.rung)] += 1
        if prediction.usage.batch_size:
            self.batch_sizes[prediction.usage.batch_size] += 1
        if prediction.reason is not None:
            self.reasons[str(prediction.reason)] += 1

    def applied(self, outcomes: list[Applied]) -> None:
        self.windows.update(str(outcome) for outcome in outcomes)

    def report(self) -> StreamReport:
        ordered, scoring = sorted(self.latencies_s), sorted(self.scoring_s)
        return StreamReport(
            n=self.num_scored,
            p50_ms=_quantile_ms(ordered, 0.5),
            p99_ms=_quantile_ms(ordered, 0.99),
            max_ms=_quantile_ms(ordered, 1.0),
            scoring_p50_ms=_quantile_ms(scoring, 0.5),
            scoring_p99_ms=_quantile_ms(scoring, 0.99),
            concurrency=self.concurrency,
            batch_sizes=dict(sorted(self.batch_sizes.items())),
            rungs=dict(self.rungs),
            reasons=dict(self.reasons),
            windows=dict(self.windows),
            dead_letters=dict(self.dead_letters),
            fenced=self.fenced,
        )


def _quantile_ms(ordered: list[float], q: float) -> float | None:
    """The smallest value that at least a share `q` of all does not exceed."""
    if not ordered:
        return None
    return ordered[max(0, -(-int(q * 1000) * len(ordered) // 1000) - 1)] * 1e3

"""What a demo run measured, as one screen and as JSON. Every figure stands beside its concurrency and batch sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


class Online(msgspec.Struct, frozen=True, kw_only=True):
    """`n` predictions seen by a client that keeps `concurrency` of them in flight. `batch_sizes` counts replies by the
    rows that shared their device call."""

    n: int
    concurrency: int
    warm_up: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    batch_sizes: dict[str, int]
    rungs: dict[str, int]
    reasons: dict[str, int]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One streamed notice, and what the bulk generation beside it produced in the same time."""

    tokens: int
    ttft_ms: float
    itl_p50_ms: float
    bulk_tokens: int
    dtype: str


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions asked one after another from the engine's death to its return. All were answered with 200."""

    n: int
    rungs: dict[str, int]
    reasons: dict[str, int]
    first_degraded_ms: float
    model_again_s: float
    restarts: int
    why: str


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """AUC over the held-out months, features as of two hours before departure; interval by bootstrap over days."""

    auc: float
    auc_low: float
    auc_high: float
    auc_student: float
    auc_prior: float
    num_flights: int
    first_day: str
    last_day: str


class WindowSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One airport's window, the state in which a prediction found it, and that prediction."""

    mean_delay: float | None
    flights: float | None
    state: str
    prediction: float


class Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """`n` departures scored by one worker from a full topic: `p50_ms` and `p99_ms` run from the poll loop's hand-over
    to the broker's acknowledgement, the wait in the backlog included; the scoring ones from an event's turn on."""

    n: int
    concurrency: int
    p50_ms: float
    p99_ms: float
    scoring_p50_ms: float
    scoring_p99_ms: float
    batch_sizes: dict[str, int]
    rungs: dict[str, int]
    windows: dict[str, int]
    dead_letters: list[str]
    airport: str
    before: WindowSeen
    after: WindowSeen


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`n` briefs, `resumed` of them kept from the run that was interrupted; `risks` delay risks from a second job."""

    n: int
    concurrency: int
    p50_ms: float
    p99_ms: float
    batch_sizes: dict[str, int]
    resumed: int
    generation: str
    route: str
    brief: str
    risks: int
    risk_entity: str
    risk_value: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The bill of the demo. `closes`: left equals right, and at most 0.5 % of it is unattributed."""

    closes: bool
    left: float
    right: float
    unattributed_share: float
    lines: list[dict[str, Any]]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    online: Online
    notice: Notice
    failover: Failover
    streaming: Streaming
    batch: Batch
    cost: Cost
    quality: Quality
    feature_rows: int
    steps: dict[str, float]
    seconds: float


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` of `values` does not exceed (nearest rank); 0 for none."""
    return sorted(values)[math.ceil(q * len(values)) - 1] if values else 0.0


def counted(values: Iterable[object]) -> dict[str, int]:
    """Counts by value, the most frequent first."""
    return dict(Counter(map(str, values)).most_common())


def to_json(summary: Summary) -> bytes:
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"


def show(summary: Summary, console: Console) -> None:
    """One screen: what was asked, what came back, how fast, how good."""
    table = Table(title="Headrace demo: flights out of New York", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows(summary):
        table.add_row(name, text)
    console.print(table)


def _rows(summary: Summary) -> Iterable[tuple[str, str]]:
    online, notice, failover, quality = summary.online, summary.notice, summary.failover, summary.quality
    yield (
        "online predictions",
        f"{online.n} delay_risk at concurrency {online.concurrency}, {online.warm_up} to warm up",
    )
    yield "  latency", f"p50 {online.p50_ms:.1f} ms   p99 {online.p99_ms:.1f} ms   max {online.max_ms:.1f} ms"
    yield "  batch sizes", "rows per device call: " + _shares(_by_number(online.batch_sizes), online.n)
    yield "  answered by", _shares(online.rungs, online.n) + _because(online.reasons)
    yield "features", f"{summary.feature_rows:,} rows materialized; one round trip to Valkey per prediction"
    yield (
        "streamed notice",
        (
            f"{notice.tokens} tokens, TTFT {notice.ttft_ms:.0f} ms, ITL p50 {notice.itl_p50_ms:.1f} ms "
            f"({notice.dtype}, 1 interactive stream beside 1 bulk stream)"
        ),
    )
    yield "  bulk meanwhile", f"{notice.bulk_tokens} tokens"
    yield (
        "engine killed",
        (
            f"{failover.n} predictions until it was back, all 200: {_shares(failover.rungs, failover.n)}"
            + _because(failover.reasons)
        ),
    )
    yield (
        "  recovery",
        (
            f"first fallback after {failover.first_degraded_ms:.0f} ms, model rung again after "
            f"{failover.model_again_s:.1f} s ({failover.restarts} restart: {failover.why})"
        ),
    )
    yield from _streaming_rows(summary.streaming)
    yield from _batch_rows(summary.batch)
    yield (
        "quality",
        (
            f"AUC {quality.auc:.3f} [{quality.auc_low:.3f}, {quality.auc_high:.3f}]   "
            f"student {quality.auc_student:.3f}   prior {quality.auc_prior:.3f}"
        ),
    )
    yield "  judged on", f"{quality.num_flights:,} held-out flights, {quality.first_day} to {quality.last_day}"
    cost = summary.cost
    yield (
        "cost",
        f"{cost.left:.6f} = {cost.right:.6f} paid, {100 * cost.unattributed_share:.3f} % unattributed: closes",
    )
    yield "seconds", f"{summary.seconds:.0f} in all"


def _streaming_rows(streaming: Streaming) -> Iterable[tuple[str, str]]:
    before, after = streaming.before, streaming.after
    yield (
        "streamed events",
        f"{streaming.n} arrival_delay at concurrency {streaming.concurrency}, {_spread(streaming.batch_sizes)} per "
        f"device call, p50 {streaming.scoring_p50_ms:.0f} ms   p99 {streaming.scoring_p99_ms:.0f} ms "
        f"({streaming.p50_ms:.0f} and {streaming.p99_ms:.0f} with the wait in the backlog)",
    )
    yield (
        f"  window of {streaming.airport}",
        f"before: {_window(before)}; after: {_window(after)}; {_counts(streaming.windows)}",
    )
    yield "  dead letters", ", ".join(streaming.dead_letters)


def _batch_rows(batch: Batch) -> Iterable[tuple[str, str]]:
    yield (
        "nightly briefs",
        f"{batch.n} route_brief at concurrency {batch.concurrency}, {_spread(batch.batch_sizes)} per step, "
        f"p50 {batch.p50_ms:.0f} ms   p99 {batch.p99_ms:.0f} ms; interrupted once, {batch.resumed} kept",
    )
    yield f"  {batch.route}", batch.brief
    yield "nightly risks", f"{batch.risks} delay_risk published; {batch.risk_entity} looked up: {batch.risk_value:.3f}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _window(seen: WindowSeen) -> str:
    known = "nothing" if seen.mean_delay is None else f"{seen.mean_delay:.1f} min over {seen.flights:.0f} flights"
    return f"{known} ({seen.state}), prediction {seen.prediction:.3f}"


def _spread(sizes: dict[str, int]) -> str:
    """Smallest, median and largest of counted batch sizes."""
    each = sorted(int(size) for size, count in sizes.items() for _ in range(count))
    return f"{each[0]} to {each[-1]} (median {each[len(each) // 2]})" if each else "none"


def _shares(counts: dict[str, int], total: int) -> str:
    return ", ".join(f"{name} {100 * count / total:.1f} % ({count})" for name, count in counts.items())


def _by_number(counts: dict[str, int]) -> dict[str, int]:
    return {size: counts[size] for size in sorted(counts, key=int)}


def _because(reasons: dict[str, int]) -> str:
    return f"   reasons: {', '.join(f'{name} ({count})' for name, count in reasons.items())}" if reasons else ""

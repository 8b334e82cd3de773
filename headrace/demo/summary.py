"""What a demo run measured, as one screen and as JSON. Every figure stands beside its concurrency and batch sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

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


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    online: Online
    notice: Notice
    failover: Failover
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
    yield (
        "quality",
        (
            f"AUC {quality.auc:.3f} [{quality.auc_low:.3f}, {quality.auc_high:.3f}]   "
            f"student {quality.auc_student:.3f}   prior {quality.auc_prior:.3f}"
        ),
    )
    yield "  judged on", f"{quality.num_flights:,} held-out flights, {quality.first_day} to {quality.last_day}"
    yield "seconds", f"{summary.seconds:.0f} in all"


def _shares(counts: dict[str, int], total: int) -> str:
    return ", ".join(f"{name} {100 * count / total:.1f} % ({count})" for name, count in counts.items())


def _by_number(counts: dict[str, int]) -> dict[str, int]:
    return {size: counts[size] for size in sorted(counts, key=int)}


def _because(reasons: dict[str, int]) -> str:
    return f"   reasons: {', '.join(f'{name} ({count})' for name, count in reasons.items())}" if reasons else ""

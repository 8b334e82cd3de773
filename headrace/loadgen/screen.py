"""A report as a screen: the load, latencies, and all that says how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.loadgen.report import METRICS, Report


def show(made: Report, console: Console) -> None:
    """Print the report."""
    table = Table()
    for name in ("ms, from due", "mean", "p50", "p90", "p99", "p99.9", "max"):
        table.add_column(name, justify="right")
    for metric in METRICS:
        if f"mean_{metric}_ms" in made:
            keys = [f"{name}_{metric}_ms" for name in ("mean", "median", "p90", "p99", "p99.9", "max")]
            table.add_row(metric.upper(), *(_ms(made[key]) for key in keys))
    _say(console, f"{made['endpoint']} of {made['base_url']}", load_of(made))
    console.print(table)
    _say(console, *_lines(made))


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)


def load_of(made: Report) -> str:
    """How the server was loaded, in a line: no figure stands without it."""
    if made["max_concurrency"] is not None:
        how = f"closed loop, {made['max_concurrency']} in flight"
    else:
        rate = "" if made["request_rate"] is None else f" {made['request_rate']:g} requests/s"
        how = f"open loop, {made['arrivals']}{rate}, {made['mean_concurrency']:.1f} in flight"
    batch = "" if made["mean_batch_size"] is None else f", {made['mean_batch_size']:.2f} per device call"
    return f"{how}{batch}; {made['num_prompts']} requests after {made['warm_up_requests']} to warm up"


def _lines(made: Report) -> Iterator[str]:
    yield (
        f"{made['completed']} answered, {made['failed']} failed in {made['duration']:.1f} s: "
        f"{made['request_throughput']:.1f} requests/s, {made['output_throughput']:.1f} output tokens/s "
        f"(counted by {made['tokens_counted_by']}), at most {made['max_concurrent_requests']} in flight"
    )
    if made["goodput"]:
        limits = ", ".join(f"{name} <= {limit:g} ms" for name, limit in made["goodput"].items())
        share = "none measured" if made["slo_attainment"] is None else f"{made['slo_attainment']:.3%} of all"
        yield f"goodput {made['request_goodput']:.1f} requests/s within {limits}: {share}"
    if made["rungs"]:
        yield f"answered by {_shares(made['rungs'])}; degraded {made['degraded_share']:.3%}"
        for rung, reasons in made["degraded"].items():
            yield f"  {rung} because of {_shares(reasons)}"
    late = made["send_lateness"]
    if late is not None:
        of_own = ", ".join(f"{name} {_ms(late[f'{name}_ms'])}" for name in ("p50", "p99", "max"))
        yield f"the generator's own lateness: {of_own} ms"
    held = made["connections"]
    used = f"at most {held['peak']} of {held['limit']} in use, {held['opened']} opened"
    yield f"connections: {used}, {held['waits']} requests waited for one"
    for kind, error in made["errors"].items():
        yield f"{error['count']} x {kind} (median {error['median_error_ms']:.1f} ms); the first: {error['first']}"
    if made["too_few_samples"]:
        yield f"too few samples for {', '.join(made['too_few_samples'])}"
    if made["distinct_bodies"] < made["num_prompts"]:
        yield f"{made['distinct_bodies']} distinct bodies, sent in turn: a cache may know those that came before"


def _shares(shares: dict[str, Any]) -> str:
    return ", ".join(f"{name} {share:.2%}" for name, share in shares.items())


def _ms(value: float | None) -> str:
    return "too few" if value is None else f"{value:.2f}"

"""The engine's series, read off its last snapshot whenever somebody scrapes; named as vLLM's, behind our prefix.

A door exports the engine as it sees it: the engine's counts over its restarts (`llm.totals`), and the values of a lost
engine as they last were; `headrace_engine_up` says which. Several doors of one engine each export the same counts: take
one of them (`max by`), do not add them. The workers of one door show them once: each shows what it heard itself. Every
value comes from the engine and nothing is counted here.
Source: vLLM, "Metrics", https://docs.vllm.ai/en/latest/design/metrics.html
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from core_engine.contracts import Pool
from core_engine.llm.client import EngineClient
from core_engine.llm.messages import Counters, Snapshot, Welcome

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]  # label values and value
BY_POOL = ("pool",)
COUNTS = {  # field of `Counters`, whose docs say more: series and help
    "admitted": ("requests_admitted", "Requests that were queued."),
    "preemptions": ("num_preemptions", "Times that a running request lost its blocks."),
    "displaced": ("seats_displaced", "Seats of this pool that an interactive request took."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "computed_tokens": ("computed_tokens", "Tokens that steps have run, those run again included."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "wasted_tokens": ("wasted_tokens", "Tokens run again because a pre-emption lost them."),
    "cached_tokens": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "drafts": ("spec_decode_num_drafts", "Drafts of sequences' next tokens that steps have verified."),
    "draft_tokens": ("spec_decode_num_draft_tokens", "Tokens in them."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens", "Of these, tokens that were right and became output."),
    "steps": ("engine_steps", "Steps that ran something of this pool."),
    "step_s_sum": ("engine_step_seconds", "Time of those steps."),
    "predicted_step_s_sum": ("engine_predicted_step_seconds", "Time of those steps by the step-time model."),
}


class EngineCollector(Collector):
    """Registered once with the page of a door's process."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def collect(self) -> Iterable[Metric]:
        client = self._client
        yield _gauge("engine_up", "1 while the engine is there and takes work.", client.available)
        if client.last_welcome is not None:
            yield from _welcome(client.last_welcome)
        if client.snapshot is not None:
            yield from _snapshot(client.snapshot)
        totals = client.totals.snapshot
        yield from _counters(totals.counters)
        yield _counter(
            "scoring_requests_admitted", "Scorer requests that were queued.", [((), totals.scoring.admitted)]
        )
        yield _counter(
            "scoring_requests_finished",
            "Scorer requests by outcome.",
            _by(totals.scoring.finished.items()),
            ("outcome",),
        )
        yield _counter(
            "scoring_requests_refused", "Scorer requests refused.", _by(totals.scoring.refused.items()), ("reason",)
        )
        yield _counter(
            "engine_aborts",
            "Attempts that ended by another hand than the engine's.",
            _by(totals.aborts.items()),
            ("reason",),
        )
        yield _counter("engine_lost_spans", "Spans of traces that the engine lost.", [((), totals.lost_spans)])


def _welcome(welcome: Welcome) -> Iterable[Metric]:
    info = GaugeMetricFamily(
        "headrace_engine_info", "Always 1.", labels=("replica", "incarnation", "model_name", "dtype")
    )
    info.add_metric((welcome.replica, welcome.incarnation, welcome.model, welcome.dtype), 1)
    yield info
    restarts = [((welcome.replica, reason), count) for reason, count in welcome.restarts.items()]
    yield _counter(
        "engine_restarts", "Restarts by the supervisor, by what ended the run before.", restarts, ("replica", "reason")
    )


def _snapshot(snapshot: Snapshot) -> Iterable[Metric]:
    loads = {Pool.INTERACTIVE: snapshot.interactive, Pool.BULK: snapshot.bulk}
    yield _gauge("engine_draining", "1 while the engine finishes what it holds.", snapshot.is_draining)
    yield _gauges("num_requests_running", "Requests in seats.", {p: load.running for p, load in loads.items()})
    yield _gauges("num_requests_waiting", "Requests queued.", {p: load.waiting for p, load in loads.items()})
    yield _gauges("num_tokens_waiting", "Their prompt tokens.", {p: load.waiting_tokens for p, load in loads.items()})
    yield _gauge("scoring_rows_waiting", "Rows that wait for a scorer.", snapshot.scoring_rows)
    held = 1 - snapshot.free_blocks / snapshot.total_blocks if snapshot.total_blocks else 0.0
    yield _gauge("kv_cache_usage_perc", "KV blocks held. 1 means all of them.", held)
    yield _gauge("kv_unused_slots", "KV slots allocated to sequences and not written.", snapshot.unused_slots)
    yield _gauge("engine_last_step_seconds", "Duration of the last step.", snapshot.step_s)
    yield _gauge("engine_last_predicted_step_seconds", "The step-time model's word for it.", snapshot.predicted_step_s)


def _counters(counters: Mapping[Pool, Counters]) -> Iterable[Metric]:
    for field, (name, what) in COUNTS.items():
        yield _counter(name, what, [((pool,), getattr(counts, field)) for pool, counts in counters.items()], BY_POOL)
    queries = [((pool,), counts.prompt_tokens) for pool, counts in counters.items()]
    yield _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", queries, BY_POOL)
    finished = [((pool, reason), n) for pool, counts in counters.items() for reason, n in counts.finished.items()]
    yield _counter("request_success", "Requests that ended, by reason.", finished, ("pool", "finished_reason"))
    refused = [((pool, reason), n) for pool, counts in counters.items() for reason, n in counts.refused.items()]
    yield _counter("requests_refused", "Requests refused, by the bound that they met.", refused, ("pool", "reason"))


def _by(counts: Iterable[tuple[str, int]]) -> Samples:
    return [((label,), count) for label, count in counts]


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_{name}", what, value=float(value))


def _gauges(name: str, what: str, by_pool: Mapping[Pool, float]) -> Metric:
    family = GaugeMetricFamily(f"headrace_{name}", what, labels=BY_POOL)
    for pool, value in by_pool.items():
        family.add_metric((pool,), value)
    return family


def _counter(name: str, what: str, samples: Samples, labels: tuple[str, ...] = ()) -> Metric:
    family = CounterMetricFamily(f"headrace_{name}", what, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family

"""Every Prometheus series of a process's own, defined once, in base units, prefix `headrace_`.

A composition root builds one `Metrics` on a registry of its own and hands it down. What is the field's is named as vLLM
names it, behind our prefix. The engine's series are not here: a door reads them off the engine's snapshot
(`online.engine_metrics`). Where a door has several workers, its page shows what all of them have counted
(`core_engine.worker_metrics`), and each gauge says by its mode how theirs become one figure.
Source: vLLM, "Metrics", https://docs.vllm.ai/en/latest/design/metrics.html
"""

from __future__ import annotations

import collections
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from core_engine.contracts import Pool, Prediction
from core_engine.worker_metrics import WorkersCollector

GENERATION_LABELS = ("model_name", "pool")
LATENCY_S = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008),  # where a scorer and a decode step are
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
DIFFERENCES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of two scores, absolute


class Metrics:
    """The series of one process. Labels are bounded: predictor and model names, rungs, reasons; never ids.

    `registry` has them. `page` has what is not this process's own, the engine's above all, and is the same registry,
    unless the process is one of several workers, who keep theirs in `workers_dir`: then `workers` has the sums.
    """

    def __init__(self, workers_dir: Path | None = None) -> None:
        self.registry = self.page = r = CollectorRegistry()
        self.workers: CollectorRegistry | None = None
        if workers_dir is not None:
            self.page, self.workers = CollectorRegistry(), CollectorRegistry()
            self.workers.register(WorkersCollector(workers_dir))
        # the door
        self.http_requests = Counter(
            "headrace_http_requests", "HTTP requests by route and status.", ["route", "status"], registry=r
        )
        self.http_in_flight = Gauge(
            "headrace_http_requests_in_flight",
            "HTTP requests being answered.",
            registry=r,
            multiprocess_mode="livesum",
        )
        self.access = Counter(
            "headrace_access",
            "Requests by tenant (none: not known) and what was decided: allowed, or the quota or fault that refused.",
            ["tenant", "outcome"],
            registry=r,
        )
        self.connections_cut = Counter(
            "headrace_connections_cut",
            "Connections ended by the door, by what their client did: slow_head, large_head, slow_reader; or for "
            "others: idle, too_many_connections.",
            ["reason"],
            registry=r,
        )
        self.predictions = Counter(
            "headrace_predictions",
            "Predictions by version and rung that answered, and the reason that no rung above it did.",
            ["predictor", "version", "rung", "reason"],
            registry=r,
        )
        self.prediction_latency = Histogram(
            "headrace_prediction_latency_seconds",
            "Arrival to answer of one prediction.",
            ["predictor", "version", "rung"],
            buckets=LATENCY_S,
            registry=r,
        )
        self.shadow_requests = Counter(
            "headrace_shadow_requests",
            "Answers of live that a shadow version was to score again, by what became of that.",
            ["predictor", "version", "outcome"],
            registry=r,
        )
        self.shadow_difference = Histogram(
            "headrace_shadow_absolute_difference",
            "Between the score of a shadow version and that of live, per request that both models scored.",
            ["predictor", "version"],
            buckets=DIFFERENCES,
            registry=r,
        )
        self.shadow_disagreements = Counter(
            "headrace_shadow_disagreements",
            "Of these requests, those that the two decide differently at their thresholds.",
            ["predictor", "version"],
            registry=r,
        )
        self.stage_latency = Histogram(
            "headrace_prediction_stage_seconds",
            "Time by stage of one prediction.",
            ["predictor", "stage"],
            buckets=LATENCY_S,
            registry=r,
        )
        self.feature_values = Counter(
            "headrace_feature_values", "Feature values read, by state.", ["predictor", "state"], registry=r
        )
        self.feature_bytes = Counter(
            "headrace_feature_read_bytes", "Payload bytes read from the online store.", registry=r
        )
        self.feature_cached_reads = Counter(
            "headrace_feature_cached_reads", "Stored rows that this process's cache answered.", registry=r
        )
        self.feature_hedges = Counter(
            "headrace_feature_hedged_reads", "Reads of the online store that were slow and asked twice.", registry=r
        )
        self.predict_limit = Gauge(
            "headrace_predict_limit",
            "Predictions of a predictor that may be on their way to the model at once.",
            registry=r,
            multiprocess_mode="livesum",
        )
        self.predict_places = Gauge(
            "headrace_predict_places",
            "Predictions by what they do: held a place, waiting for one.",
            ["state"],
            registry=r,
            multiprocess_mode="livesum",
        )
        self.breaker_state = Gauge(
            "headrace_breaker_state",
            "Circuit breaker by dependency: 0 closed, 1 a probe is on its way, 2 open.",
            ["dependency"],
            registry=r,
            multiprocess_mode="livemax",
        )
        self.feature_view_reads = Counter(
            "headrace_feature_view_reads",
            "Rows of a feature view that were read, by outcome: fresh, stale, missing.",
            ["view", "outcome"],
            registry=r,
        )
        self.served_log_rows = Counter(
            "headrace_served_log_rows",
            "Reads sampled for the served log, by outcome: written, dropped (no room), failed.",
            ["outcome"],
            registry=r,
        )
        self.spool_lost_facts = Counter(
            "headrace_spool_lost_facts", "Usage facts that found no room in the spool's buffer.", registry=r
        )
        self.spool_write_failures = Counter(
            "headrace_spool_write_failures", "Writes to the spool's file that failed.", registry=r
        )
        self.trace_spans = Counter(
            "headrace_trace_spans",
            "Spans of traces by outcome: exported, dropped (no room in the queue), failed (no collector took them).",
            ["outcome"],
            registry=r,
        )
        # the stream door
        self.stream_events = Counter(
            "headrace_stream_events", "Events by what became of them.", ["topic", "outcome"], registry=r
        )
        self.stream_event_latency = Histogram(
            "headrace_stream_event_latency_seconds",
            "Hand-over by the poll loop to acknowledged output of one event.",
            ["predictor"],
            buckets=LATENCY_S,
            registry=r,
        )
        self.window_events = Counter(
            "headrace_window_events", "Events by what became of them in a window.", ["view", "outcome"], registry=r
        )
        # generation, seen by the caller; the last three as the engine tells in the usage
        self.time_to_first_token = self._generation("time_to_first_token", "Arrival to first token out, once each.")
        self.inter_token_latency = self._generation("inter_token_latency", "Gap between two tokens of one stream.")
        self.time_per_output_token = self._generation(
            "request_time_per_output_token", "First token to last, over the tokens after the first, of one generation."
        )
        self.e2e_latency = self._generation("e2e_request_latency", "Arrival to the end of one generation.")
        self.queue_time = self._generation("request_queue_time", "Arrival in the engine to its first step.")
        self.prefill_time = self._generation("request_prefill_time", "First step to first token.")
        self.decode_time = self._generation("request_decode_time", "First token to the end in the engine.")
        self.tokens = Counter(
            "headrace_tokens",
            "Tokens of generations by kind: prompt, cached (of the prompt), completion.",
            [*GENERATION_LABELS, "kind"],
            registry=r,
        )
        self.generations = Counter(
            "headrace_generations",
            "Generations by how they ended for the caller, and the reason where they were not answered.",
            [*GENERATION_LABELS, "finished_reason", "reason"],
            registry=r,
        )
        self.admission_refused = Counter(
            "headrace_admission_refused",
            "Requests refused before they were sent to the engine: they could not have been in time.",
            ["pool"],
            registry=r,
        )
        for pool in Pool:
            self.admission_refused.labels(pool)  # shown before there is one

    def _generation(self, name: str, what: str) -> Histogram:
        return Histogram(f"headrace_{name}_seconds", what, GENERATION_LABELS, buckets=LATENCY_S, registry=self.registry)

    def predicted(self, prediction: Prediction) -> None:
        """Count one prediction: its rung and reason, its stages, and the states of its features."""
        name, rung, stages = prediction.predictor, prediction.rung, prediction.stages
        version = str(prediction.version)
        self.predictions.labels(name, version, rung, prediction.reason or "").inc()
        self.prediction_latency.labels(name, version, rung).observe(stages.total_ms / 1e3)
        for stage in ("features", "queue", "model", "fallback"):
            if elapsed_ms := getattr(stages, f"{stage}_ms"):
                self.stage_latency.labels(name, stage).observe(elapsed_ms / 1e3)
        for state, num_values in collections.Counter(prediction.feature_states.values()).items():
            self.feature_values.labels(name, state).inc(num_values)
        self.feature_bytes.inc(prediction.usage.feature.bytes)
        self.feature_cached_reads.inc(prediction.usage.feature.cached)
        if hedges := prediction.usage.feature.hedges:
            self.feature_hedges.inc(hedges)

    def refused(self, pool: Pool) -> None:
        """Count one request that was not even sent to the engine."""
        self.admission_refused.labels(pool).inc()

    def render(self) -> bytes:
        """The exposition text of the page, without what several workers have counted."""
        return generate_latest(self.page)

    def render_workers(self) -> bytes:
        """The exposition text of the workers' sums; empty in a process that is alone. It reads files only, and may be
        called in a thread: 70 ms with 4 workers and 1,500 series each."""
        return b"" if self.workers is None else generate_latest(self.workers)

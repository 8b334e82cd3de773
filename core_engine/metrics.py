"""Every Prometheus series, defined once, in base units, prefix `headrace_`.

A composition root builds one `Metrics` on a registry of its own and hands it down. Names follow the field:
time_to_first_token, inter_token_latency, e2e_request_latency.
"""

from __future__ import annotations

import collections

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from core_engine.contracts import Prediction

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The series of one process. Labels are bounded: predictor and model names, rungs, reasons; never ids."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        r = self.registry
        # the door
        self.http_requests = Counter(
            "headrace_http_requests", "HTTP requests by route and status.", ["route", "status"], registry=r
        )
        self.http_in_flight = Gauge("headrace_http_requests_in_flight", "HTTP requests being answered.", registry=r)
        self.predictions = Counter(
            "headrace_predictions",
            "Predictions by rung that answered and the reason that no rung above it did.",
            ["predictor", "rung", "reason"],
            registry=r,
        )
        self.prediction_latency = Histogram(
            "headrace_prediction_latency_seconds",
            "Arrival to answer of one prediction.",
            ["predictor", "rung"],
            buckets=LATENCY_S,
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
        self.spool_lost_facts = Counter(
            "headrace_spool_lost_facts", "Usage facts that found no room in the spool's buffer.", registry=r
        )
        self.spool_write_failures = Counter(
            "headrace_spool_write_failures", "Writes to the spool's file that failed.", registry=r
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
        # generation, seen by the caller
        self.time_to_first_token = Histogram(
            "headrace_time_to_first_token_seconds",
            "Arrival to first token out.",
            ["model", "pool"],
            buckets=LATENCY_S,
            registry=r,
        )
        self.inter_token_latency = Histogram(
            "headrace_inter_token_latency_seconds",
            "Gap between two tokens of one stream.",
            ["model", "pool"],
            buckets=LATENCY_S,
            registry=r,
        )
        self.e2e_latency = Histogram(
            "headrace_e2e_request_latency_seconds",
            "Arrival to last token of one generation.",
            ["model", "pool"],
            buckets=LATENCY_S,
            registry=r,
        )
        self.tokens = Counter(
            "headrace_tokens", "Tokens by kind: prompt, completion.", ["model", "pool", "kind"], registry=r
        )
        self.generations = Counter(
            "headrace_generations", "Generations by finish reason.", ["model", "pool", "finish_reason"], registry=r
        )
        # the engine, from its snapshot
        self.engine_up = Gauge("headrace_engine_up", "1 while heartbeats arrive.", registry=r)
        self.engine_steps = Gauge("headrace_engine_steps", "Steps since the engine started.", registry=r)
        self.engine_waiting = Gauge("headrace_engine_waiting_sequences", "Sequences queued.", ["pool"], registry=r)
        self.engine_running = Gauge("headrace_engine_running_sequences", "Sequences in seats.", ["pool"], registry=r)
        self.engine_free_blocks = Gauge("headrace_engine_free_kv_blocks", "KV blocks not held.", registry=r)
        self.engine_step_seconds = Gauge("headrace_engine_step_seconds", "Duration of the last step.", registry=r)
        self.engine_predicted_step_seconds = Gauge(
            "headrace_engine_predicted_step_seconds", "The step-time model's word for the last step.", registry=r
        )

    def predicted(self, prediction: Prediction) -> None:
        """Count one prediction: its rung and reason, its stages, and the states of its features."""
        name, rung, stages = prediction.predictor, prediction.rung, prediction.stages
        self.predictions.labels(name, rung, prediction.reason or "").inc()
        self.prediction_latency.labels(name, rung).observe(stages.total_ms / 1e3)
        for stage in ("features", "queue", "model", "fallback"):
            if elapsed_ms := getattr(stages, f"{stage}_ms"):
                self.stage_latency.labels(name, stage).observe(elapsed_ms / 1e3)
        for state, num_values in collections.Counter(prediction.feature_states.values()).items():
            self.feature_values.labels(name, state).inc(num_values)
        self.feature_bytes.inc(prediction.usage.feature.bytes)

    def render(self) -> bytes:
        """The exposition text of every series."""
        return generate_latest(self.registry)

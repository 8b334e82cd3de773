"""One trace, whole: from the caller's `traceparent` over the door to the engine's steps, as a collector receives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from core_engine.contracts import Deadline
from core_engine.llm.client import EngineClient
from core_engine.metrics import Metrics
from core_engine.predictors.predict import PredictFlow
from core_engine.predictors.rungs import RungCache
from core_engine.predictors.system_prompt import SystemPrompts
from core_engine.settings import TracingSettings
from core_engine.tracing import SpanContext
from headrace.tracing import Tracing, open_tracing
from online.app import create_app
from online.services import Services
from tests.core_engine.llm.running import running
from tests.core_engine.llm.tiny import tiny_engine
from tests.core_engine.predictors.doubles import INPUTS
from tests.headrace.otlp_collector import Collector, Received, collecting
from tests.online.conftest import DoorUnderTest
from tests.online.real_door import MESSAGES, chat_tokenizer, listening

CALLER = SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
FROM_CALLER = {"traceparent": CALLER.traceparent}
ROUNDING_NS = 1_000


@dataclass
class Traced:
    """A door and an engine, each with its own tracing, as two processes have it; and their collector."""

    http: httpx.AsyncClient
    client: EngineClient
    collector: Collector
    metrics: Metrics
    tracings: tuple[Tracing, ...]

    async def spans(self) -> list[Received]:
        """All of them, once the engine has told the end of everything and what is left is sent."""
        while (await self.http.get("/readyz")).json()["in_flight"]:
            pass
        for tracing in self.tracings:
            tracing.close()
        return self.collector.spans


@asynccontextmanager
async def traced(door: DoorUnderTest, folder: Path, sample_ratio: float = 1.0) -> AsyncIterator[Traced]:
    metrics = Metrics()
    with collecting() as collector:
        settings = TracingSettings(endpoint=collector.url, sample_ratio=sample_ratio, timeout_s=600, flush_s=600)
        tracings = tuple(open_tracing(settings, role, metrics) for role in ("door", "engine"))
        async with running(tiny_engine(), tracer=tracings[1].tracer) as (client, _):
            await client.load_scorer("delay:1", str(folder), "good")
            services = await _services(door, client, metrics, tracings[0])
            async with listening(create_app(services)) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
                yield Traced(http, client, collector, metrics, tracings)
        for tracing in tracings:
            tracing.close()


async def _services(door: DoorUnderTest, client: EngineClient, metrics: Metrics, tracing: Tracing) -> Services:
    given, rungs, tokenizer = door.services, RungCache(), chat_tokenizer()
    await rungs.get(given.catalogue.resolve("delay"), Deadline.never())
    flow = PredictFlow(
        features=door.features, engine=client, rungs=rungs, spool=given.spool, metrics=metrics, feature_cap_s=60.0
    )
    return replace(
        given,
        flow=flow,
        client=client,
        tokenizer=tokenizer,
        system_prompts=SystemPrompts(tokenizer),
        metrics=metrics,
        tracer=tracing.tracer,
    )


def by_name(spans: list[Received]) -> dict[str, Received]:
    named = {span.name: span for span in spans}
    assert len(named) == len(spans), "one span of each name was expected"
    return named


async def test_a_prediction_s_trace_goes_from_its_caller_to_the_engine_s_answer(
    door: DoorUnderTest, tmp_path: Path
) -> None:
    async with traced(door, tmp_path) as whole:
        reply = await whole.http.post("/v1/predict/delay", json={"inputs": INPUTS}, headers=FROM_CALLER)
        assert reply.json()["rung"] == "model"
        spans = by_name(await whole.spans())
    server, engine = spans["POST /v1/predict/{predictor}"], spans["engine score"]
    assert {span.trace_id for span in spans.values()} == {CALLER.trace_id}
    assert server.parent_id == CALLER.span_id
    assert reply.headers["traceparent"] == f"00-{CALLER.trace_id}-{server.span_id}-01"
    assert engine.parent_id == server.span_id
    assert (server.service, engine.service) == ("headrace-door", "headrace-engine")
    assert (server.kind, engine.kind) == ("server", "server")
    assert server.has_remote_parent
    assert engine.has_remote_parent

    stages = [span for span in spans.values() if span.parent_id == server.span_id and span is not engine]
    assert {"auth", "features", "queue", "model", "serialise"} == {stage.name for stage in stages}
    for stage in stages:
        assert server.start_ns - ROUNDING_NS <= stage.start_ns <= stage.end_ns <= server.end_ns + ROUNDING_NS
    assert engine.duration_ns <= server.duration_ns + ROUNDING_NS
    assert not any(stage.has_remote_parent for stage in stages)
    assert engine.attributes["headrace.attempt_id"] == reply.json()["attempt_id"]
    assert engine.attributes["headrace.outcome"] == "scored"
    assert engine.events == ("first step",)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_s_trace_goes_from_its_caller_to_the_engine_s_steps(
    door: DoorUnderTest, tmp_path: Path, stream: bool
) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "ignore_eos": True}
    async with traced(door, tmp_path) as whole:
        reply = await whole.http.post("/v1/chat/completions", json=body | {"stream": stream}, headers=FROM_CALLER)
        assert reply.status_code == 200
        spans = by_name(await whole.spans())
    server, generation, engine = spans["POST /v1/chat/completions"], spans["chat tiny"], spans["engine generate"]
    assert {span.trace_id for span in spans.values()} == {CALLER.trace_id}
    assert server.parent_id == CALLER.span_id
    assert reply.headers["traceparent"] == f"00-{CALLER.trace_id}-{server.span_id}-01"
    assert (generation.parent_id, engine.parent_id) == (server.span_id, generation.span_id)
    assert {spans[stage].parent_id for stage in ("queue", "prefill", "decode")} == {generation.span_id}
    assert set(spans) == {server.name, generation.name, engine.name, "queue", "prefill", "decode"}

    assert generation.attributes["gen_ai.usage.output_tokens"] == 5
    assert engine.attributes["gen_ai.usage.output_tokens"] == 5
    assert engine.attributes["gen_ai.usage.input_tokens"] == generation.attributes["gen_ai.usage.input_tokens"]
    assert engine.attributes["headrace.steps"] == 5
    assert engine.attributes["headrace.outcome"] == "length"
    assert engine.events == ("first step", "first token")
    assert generation.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert engine.duration_ns <= generation.duration_ns + ROUNDING_NS <= server.duration_ns + 2 * ROUNDING_NS


async def test_what_is_not_sampled_reaches_no_collector(door: DoorUnderTest, tmp_path: Path) -> None:
    unsampled = replace(CALLER, is_sampled=False).traceparent
    async with traced(door, tmp_path, sample_ratio=0.0) as whole:
        for headers in ({"traceparent": unsampled}, {}, {"traceparent": "nonsense"}):
            reply = await whole.http.post("/v1/predict/delay", json={"inputs": INPUTS}, headers=headers)
            assert (reply.status_code, reply.json()["rung"]) == (200, "model")
            assert "traceparent" not in reply.headers
        assert await whole.spans() == []


async def test_neither_door_nor_engine_waits_for_a_collector_that_does_not_answer(
    door: DoorUnderTest, tmp_path: Path
) -> None:
    async with traced(door, tmp_path) as whole:
        whole.collector.is_open.clear()
        for _ in range(3):
            reply = await whole.http.post("/v1/predict/delay", json={"inputs": INPUTS})
            assert reply.json()["rung"] == "model"
        assert not whole.collector.spans
        whole.collector.is_open.set()
        assert {span.service for span in await whole.spans()} == {"headrace-door", "headrace-engine"}

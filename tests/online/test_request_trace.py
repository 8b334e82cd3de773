"""What a door records of a request: from whom, under which names, and never what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from core_engine.contracts import Rung
from core_engine.errors import EngineUnavailable
from core_engine.metrics import Metrics
from core_engine.tracing import Span, SpanContext, SpanKind, Tracer
from online.app import create_app
from online.services import Services
from tests.core_engine.predictors.doubles import INPUTS
from tests.online.conftest import TEXT, DoorUnderTest

ROUTE = "/v1/predict/delay"
CALLER = SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
FROM_CALLER = {"traceparent": CALLER.traceparent}
MESSAGES = [{"role": "user", "content": "Say something."}]


@dataclass
class TracedDoor:
    door: DoorUnderTest
    services: Services
    tracer: Tracer
    http: httpx.AsyncClient

    def spans(self) -> list[Span]:
        """Of the request that is over; the server's last."""
        return self.tracer.take(100)

    async def predict(self, **request: Any) -> httpx.Response:
        return await self.http.post(ROUTE, **{"json": {"inputs": INPUTS}, **request})

    async def chat(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        asked = {"model": "tiny", "messages": MESSAGES} | body
        return await self.http.post("/v1/chat/completions", json=asked, headers=headers)


@asynccontextmanager
async def traced(door: DoorUnderTest, tracer: Tracer | None = None) -> AsyncIterator[TracedDoor]:
    tracer = tracer or Tracer()
    services = replace(door.services, tracer=tracer, metrics=Metrics())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(services)), base_url="http://door") as http:
        yield TracedDoor(door, services, tracer, http)


def told(span: Span) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in span.attributes.items()}


async def test_a_prediction_is_a_server_span_below_the_caller_s_with_a_child_for_each_stage(
    door: DoorUnderTest,
) -> None:
    async with traced(door) as traced_door:
        reply = await traced_door.predict(headers=FROM_CALLER)
        *stages, server = traced_door.spans()
    assert server.name == "POST /v1/predict/{predictor}"
    assert server.kind is SpanKind.SERVER
    assert server.parent == CALLER
    assert server.context.trace_id == CALLER.trace_id
    assert reply.headers["traceparent"] == server.context.traceparent
    assert not server.is_error
    assert told(server) == {
        "http.request.method": "POST",
        "http.route": "/v1/predict/{predictor}",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "headrace.attempt_id": reply.json()["attempt_id"],
        "headrace.tenant": "local",
        "headrace.predictor": "delay",
        "headrace.version": 1,
        "headrace.rung": "model",
        "headrace.batch_size": 4,
    }
    spent = {stage.name for stage in stages}
    assert {"auth", "features", "model", "serialise"} <= spent <= {"auth", "features", "queue", "model", "serialise"}
    assert {stage.parent for stage in stages} == {server.context}
    assert stages[0].start_ns == server.start_ns
    for before, after in pairwise(stages[:-1]):
        assert abs(after.start_ns - before.end_ns) <= 1, "end to end, but for rounding"
    model = next(stage for stage in stages if stage.name == "model")
    assert told(model) == {"headrace.batch_size": 4, "headrace.device_ms": 0.5}


async def test_the_engine_is_given_the_server_span_as_its_caller_s(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        await traced_door.predict()
        *_, server = traced_door.spans()
    (asked,) = door.engine.score_requests
    assert asked.traceparent == server.context.traceparent


async def test_the_log_line_has_the_trace_that_began_here(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        with capture_logs() as logs:
            await traced_door.predict()
        *_, server = traced_door.spans()
    (line,) = [line for line in logs if line["event"] == "request"]
    assert server.parent is None
    assert line["trace_id"] == server.context.trace_id


async def test_a_lower_rung_s_answer_says_which_and_why(door: DoorUnderTest) -> None:
    door.engine.error = EngineUnavailable("lost")
    async with traced(door) as traced_door:
        await traced_door.predict()
        *stages, server = traced_door.spans()
    assert (server.attributes["headrace.rung"], server.attributes["headrace.reason"]) == (
        Rung.STUDENT,
        "engine_unavailable",
    )
    fallback = next(stage for stage in stages if stage.name == "fallback")
    assert told(fallback) == {"headrace.rung": "student"}


BAD = ["", "nonsense", f"00-{CALLER.trace_id}", f"ff-{CALLER.traceparent[3:]}", f"00-{'0' * 32}-{CALLER.span_id}-01"]


@pytest.mark.parametrize("headers", [[("traceparent", bad)] for bad in BAD] + [[*FROM_CALLER.items()] * 2])
async def test_a_bad_traceparent_begins_a_trace_of_its_own(door: DoorUnderTest, headers: list[tuple[str, str]]) -> None:
    async with traced(door) as traced_door:
        reply = await traced_door.predict(headers=headers)
        *_, server = traced_door.spans()
    assert reply.status_code == 200
    assert server.parent is None
    assert server.context.trace_id != CALLER.trace_id


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_what_the_caller_does_not_record_is_not_recorded_here(door: DoorUnderTest, ratio: float) -> None:
    unsampled = replace(CALLER, is_sampled=False)
    async with traced(door, Tracer(ratio)) as traced_door:
        for reply in (
            await traced_door.predict(headers={"traceparent": unsampled.traceparent}),
            await traced_door.chat({"traceparent": unsampled.traceparent}),
        ):
            assert reply.status_code == 200
            assert "traceparent" not in reply.headers
        assert not traced_door.spans()
    assert [asked.traceparent for asked in door.engine.score_requests] == [None]
    assert [asked.traceparent for asked in door.engine.generate_requests] == [None]


async def test_of_traces_that_begin_here_a_ratio_of_zero_records_none(door: DoorUnderTest) -> None:
    async with traced(door, Tracer(0.0)) as traced_door:
        assert "traceparent" not in (await traced_door.predict()).headers
        assert not traced_door.spans()
        assert "traceparent" in (await traced_door.predict(headers=FROM_CALLER)).headers


async def test_a_door_that_does_not_trace_sends_no_traceparent_anywhere(door: DoorUnderTest) -> None:
    reply = await door.http.post(ROUTE, json={"inputs": INPUTS}, headers=FROM_CALLER)
    assert "traceparent" not in reply.headers
    assert door.engine.score_requests[0].traceparent is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_s_generation_has_genai_s_names_and_its_stages_below_it(door: DoorUnderTest, stream: bool) -> None:
    async with traced(door) as traced_door:
        reply = await traced_door.chat(FROM_CALLER, stream=stream, max_tokens=50)
        queue, prefill, decode, generation, server = traced_door.spans()
    assert reply.headers["traceparent"] == server.context.traceparent
    assert server.attributes["gen_ai.request.model"] == "tiny"
    assert server.attributes["gen_ai.operation.name"] == "chat"
    assert server.attributes["gen_ai.request.choice.count"] == 1

    (asked,) = door.engine.generate_requests
    assert (generation.name, generation.kind, generation.parent) == ("chat tiny", SpanKind.CLIENT, server.context)
    assert asked.traceparent == generation.context.traceparent
    num_tokens = len(door.engine.tokens)
    assert told(generation) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": len(asked.prompt_token_ids),
        "gen_ai.usage.output_tokens": num_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.attributes["gen_ai.usage.cache_read.input_tokens"],
        "headrace.attempt_id": asked.attempt_id,
    }
    assert [stage.name for stage in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    assert {stage.parent for stage in (queue, prefill, decode)} == {generation.context}
    assert queue.end_ns == prefill.start_ns
    assert prefill.end_ns == decode.start_ns <= decode.end_ns <= generation.end_ns
    assert told(decode) == {"gen_ai.usage.output_tokens": num_tokens}


async def test_every_choice_is_a_generation_of_its_own(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        await traced_door.chat(n=2)
        spans = traced_door.spans()
    generations = [span for span in spans if span.name == "chat tiny"]
    assert {span.context.traceparent for span in generations} == {
        request.traceparent for request in door.engine.generate_requests
    }
    assert len({span.context.span_id for span in spans}) == len(spans) == 2 * 4 + 1


async def test_a_generation_that_failed_says_why(door: DoorUnderTest) -> None:
    door.engine.error = EngineUnavailable("lost")
    async with traced(door) as traced_door:
        await traced_door.chat()
        generation, server = traced_door.spans()
    assert generation.is_error
    assert generation.attributes["error.type"] == "engine_unavailable"
    assert server.is_error
    assert (server.attributes["http.response.status_code"], server.attributes["error.type"]) == (503, "503")


async def test_a_stream_that_its_client_leaves_is_told_apart_from_a_fault(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        body = json.dumps({"model": "tiny", "messages": MESSAGES, "stream": True}).encode()
        coming = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        scope = {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        door.engine.hold = asyncio.Event()  # never set: the stream does not end by itself

        async def receive() -> Any:
            return coming.pop(0) if len(coming) > 1 else coming[0]

        async def send(_: Any) -> None: ...

        await create_app(replace(traced_door.services, metrics=Metrics()))(scope, receive, send)
        *_, server = traced_door.spans()
    assert server.attributes["error.type"] == "client_disconnected"
    assert not server.is_error


async def test_embeddings_name_their_model_and_give_the_engine_their_caller(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        await traced_door.http.post("/v1/embeddings", json={"model": "tiny", "input": ["one", "two"]})
        (server,) = traced_door.spans()
    assert server.attributes["gen_ai.operation.name"] == "embeddings"
    assert server.attributes["gen_ai.request.model"] == "tiny"
    assert {asked.traceparent for asked in door.engine.head_requests} == {server.context.traceparent}


async def test_refusals_are_recorded_and_only_our_faults_are_errors(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        for request, status in ((("GET", "/nothing"), 404), (("BREW", ROUTE), 405), (("POST", ROUTE), 415)):
            assert (await traced_door.http.request(*request)).status_code == status
            (server,) = traced_door.spans()
            assert not server.is_error
            assert "error.type" not in server.attributes
        traced_door.services.state.draining = True
        await traced_door.predict()
        (server,) = traced_door.spans()
        assert server.is_error


async def test_names_that_a_client_makes_up_are_in_no_name_of_a_span(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        await traced_door.http.get("/nothing/XQZJ")
        await traced_door.http.request("XQZJ", ROUTE)
        assert [span.name for span in traced_door.spans()] == ["GET", "HTTP /v1/predict/{predictor}"]


async def test_probes_are_not_recorded(door: DoorUnderTest) -> None:
    async with traced(door) as traced_door:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert "traceparent" not in (await traced_door.http.get(path, headers=FROM_CALLER)).headers
        assert not traced_door.spans()


async def test_nothing_that_was_asked_or_answered_is_in_any_span(door: DoorUnderTest) -> None:
    secret = "XQZJ"
    async with traced(door) as traced_door:
        http, headers = (
            traced_door.http,
            {
                "X-Request-Id": secret,
                "Idempotency-Key": secret,
                "X-Api-Key": secret,
                "tracestate": f"x={secret}",
                "baggage": f"x={secret}",
                "User-Agent": secret,
            },
        )
        await traced_door.predict(json={"inputs": {**INPUTS, "origin": secret}}, headers=headers)
        await traced_door.predict(json={"inputs": {**INPUTS, "seats": secret}}, headers=headers)
        await traced_door.predict(json={"inputs": INPUTS, "alias": secret}, headers=headers)
        await http.post(f"/v1/predict/{secret}?{secret}={secret}", json={"inputs": INPUTS}, headers=headers)
        await http.get(f"/v1/predictions/delay/{secret}", headers=headers)
        for stream in (False, True):
            said = [{"role": "user", "content": secret}]
            reply = await traced_door.chat(headers, messages=said, stream=stream, stop=[secret], user=secret)
            assert reply.status_code == 200
        await traced_door.chat(headers, model=secret)
        await http.post("/v1/completions", json={"model": "tiny", "prompt": secret}, headers=headers)
        await http.post("/v1/embeddings", json={"model": "tiny", "input": secret}, headers=headers)
        await http.post("/v1/embeddings", json={"model": secret, "input": secret}, headers=headers)
        spans = traced_door.spans()
    assert {span.name for span in spans} >= {"POST /v1/predict/{predictor}", "chat tiny", "text_completion tiny"}
    written = repr(spans)
    assert secret not in written
    assert not any(word in written for word in TEXT.split() if len(word) > 3), "what was answered"

"""Door and engine as processes that trace: what they have recorded is with the collector when they have ended."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx

from core_engine.contracts import Deadline, GenerateRequest, SamplingParams
from core_engine.llm.client import EngineClient
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.tracing import SpanContext
from headrace.migrations import upgrade
from headrace.runtime import free_port, socket_folder
from tests.core_engine.llm.test_client_and_server import collect, tokens
from tests.core_engine.predictors.doubles import INPUTS, delay_predictor
from tests.headrace.otlp_collector import Collector, collecting
from tests.headrace.test_door import DoorProcess, start, until_up
from tests.headrace.test_door import environment as door_environment
from tests.headrace.test_engine_process import ROOT, TOY
from tests.headrace.test_engine_process import environment as engine_environment

CALLER = SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def tracing_to(collector: Collector) -> dict[str, str]:
    """However long the collector takes: it is on the same machine."""
    own = {"ENDPOINT": collector.url, "TIMEOUT_S": "600", "FLUSH_S": "600"}
    return {f"HEADRACE_TRACING__{name}": value for name, value in own.items()}


def test_a_door_that_is_told_to_go_has_sent_its_last_spans(tmp_path: Path) -> None:
    url, port = f"sqlite:///{tmp_path / 'headrace.db'}", free_port("127.0.0.1")
    upgrade(url)
    database = open_database(url)
    registry = Registry(database)
    registry.register(delay_predictor(tmp_path))
    registry.set_alias("delay", "live", 1)
    database.dispose()
    with collecting() as collector:
        process = start(door_environment(tmp_path, port) | tracing_to(collector))
        door = DoorProcess(process, f"http://127.0.0.1:{port}", tmp_path)
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if json.loads(line)["event"] == "door_serving":
                    break
            until_up(door.url)
            headers = {"traceparent": CALLER.traceparent}
            reply = httpx.post(f"{door.url}/v1/predict/delay", json={"inputs": INPUTS}, headers=headers, timeout=60)
            assert reply.json()["rung"] == "student"
            page = httpx.get(f"{door.url}/metrics", timeout=60).text
            assert "headrace_engine_lost_spans_total 0.0" in page
            logged = door.stop()
        finally:
            process.kill()
            process.communicate()
        (server,) = [span for span in collector.spans if span.kind == "server"]
    assert process.returncode == 0
    assert {span.trace_id for span in collector.spans} == {CALLER.trace_id}
    assert server.parent_id == CALLER.span_id
    assert server.attributes["headrace.reason"] == "engine_unavailable"
    (told,) = [line for line in logged if line["event"] == "request" and line["route"].startswith("/v1")]
    assert told["attempt_id"] == server.attributes["headrace.attempt_id"]


async def test_an_engine_that_is_told_to_go_has_sent_its_last_spans(tmp_path: Path) -> None:
    with socket_folder(tmp_path / "run") as folder, collecting() as collector:
        environ = engine_environment(folder) | tracing_to(collector)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", TOY, env=environ, cwd=ROOT)
        client = EngineClient(f"ipc://{folder}/e")
        await client.start()
        try:
            await client.wait_available(120)
            asked = GenerateRequest(
                "traced",
                (1, 2, 3),
                SamplingParams(max_tokens=6, ignore_eos=True),
                Deadline.never(),
                traceparent=CALLER.traceparent,
            )
            assert len(tokens(await collect(client, asked))) == 6
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            await client.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
        (span,) = collector.spans
    assert (span.service, span.trace_id, span.parent_id) == ("headrace-engine", CALLER.trace_id, CALLER.span_id)
    assert (span.attributes["headrace.attempt_id"], span.attributes["headrace.steps"]) == ("traced", 6)

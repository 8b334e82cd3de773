"""Our side: the engine as it runs in production, its own process, reached by the client of the doors over ZeroMQ."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from benchmarks.comparison.child import Child, peak_rss
from benchmarks.comparison.side import OURS, Label
from benchmarks.comparison.workload import Job
from core_engine.contracts import Deadline, GenerateRequest, Head, HeadKind, Pool, SamplingParams
from core_engine.llm.client import EngineClient

STARTUP_S = 60.0
FALLBACK = "kernel_unavailable"  # the engine's warning that the C++ step is not there
QUANTISED = {"int8": 8, "int4": 4}  # bits
LABELS = ((2178,), (787,))  # of the scorings: two single tokens; which ones changes nothing


Serve: TypeAlias = Callable[[EngineClient, GenerateRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Precision:
    """`weights` and `kv` as the settings of the engine name them."""

    weights: str
    kv: str

    @classmethod
    def parse(cls, text: str) -> Precision:
        """`WEIGHTS` or `WEIGHTS/KV`; without KV it is int8 for quantised weights, the model's type for others."""
        weights, _, kv = text.partition("/")
        return cls(weights, kv or cls.usual_kv(weights))

    @staticmethod
    def usual_kv(weights: str) -> str:
        return "int8" if weights in QUANTISED else "model"

    @property
    def bits(self) -> int:
        return QUANTISED.get(self.weights, 16)  # float32 stands beside the 16-bit ones

    def __str__(self) -> str:
        model_kv = "float32" if self.weights == "float32" else "bfloat16"
        return f"{self.weights}, {model_kv if self.kv == 'model' else self.kv} KV"

    def label(self) -> Label:
        version = importlib.metadata.version("headrace")
        kv = "" if self.kv == self.usual_kv(self.weights) else f"-{self.kv}-kv"
        return Label(f"headrace-{self.weights}{kv}", OURS, str(self), self.bits, version)


def engine_environ(folder: Path, precision: Precision) -> dict[str, str]:
    """This process's environment, an endpoint and a state folder in `folder`, the precision, and no speculation."""
    return {
        **os.environ,
        "HEADRACE_ENGINE__SPECULATION": "off",
        "HEADRACE_ENGINE__ENDPOINT": f"ipc://{folder}/engine.sock",
        "HEADRACE_STATE_DIR": str(folder / "state"),
        "HEADRACE_ENGINE__WEIGHTS": precision.weights,
        "HEADRACE_ENGINE__KV": precision.kv,
    }


def as_run(label: Label, log: Path) -> Label:
    """The label, and whether the engine's log says that it had to do without the C++ step."""
    if FALLBACK in log.read_text(errors="replace"):
        return replace(label, precision=f"{label.precision}, torch reference")
    return label


class OurEngine:
    """A `Side`. The clock runs in this process, which is the client's."""

    def __init__(self, precision: Precision, folder: Path) -> None:
        """Start it and wait until it answers."""
        self.peak_rss_bytes = 0
        self.endpoint = f"ipc://{folder}/engine.sock"
        self.label = precision.label()
        command = [sys.executable, "-m", "headrace", "engine"]
        self._started_s = time.perf_counter()
        self._child = Child(command, engine_environ(folder, precision), folder / "engine.log")
        try:
            self._timed([], 1, generate)
        except BaseException as error:
            error.add_note(self._child.last_words())
            self._child.close()
            raise
        self.label = as_run(self.label, self._child.log)

    def run(self, jobs: Sequence[Job], concurrency: int) -> float:
        return self._timed(jobs, concurrency, generate)

    def score(self, jobs: Sequence[Job], concurrency: int) -> float:
        """Seconds for as many scorings over two labels: prompts only, logits of the labels only."""
        return self._timed(jobs, concurrency, score)

    def since_start_s(self) -> float:
        return time.perf_counter() - self._started_s

    def close(self) -> None:
        self._child.close()

    def _timed(self, jobs: Sequence[Job], concurrency: int, serve: Serve) -> float:
        with peak_rss([self._child.process.pid]) as samples:
            seconds = asyncio.run(serve_all(self.endpoint, jobs, concurrency, serve))
        self.peak_rss_bytes = max(samples)
        return seconds


async def serve_all(endpoint: str, jobs: Sequence[Job], concurrency: int, serve: Serve) -> float:
    """Seconds for all jobs with `concurrency` in flight; connecting is not in them."""
    client = EngineClient(endpoint)
    await client.start()
    try:
        await client.wait_available(STARTUP_S)
        queue = list(enumerate(jobs))

        async def worker() -> None:
            while queue:
                number, job = queue.pop(0)
                sampling = SamplingParams(max_tokens=job.max_tokens, ignore_eos=True)
                attempt = f"bench-{number}"
                await serve(client, GenerateRequest(attempt, job.prompt, sampling, Deadline.never(), Pool.INTERACTIVE))

        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - start
    finally:
        await client.close()


async def generate(client: EngineClient, request: GenerateRequest) -> None:
    count = 0
    async for delta in client.generate(request):
        count += len(delta.token_ids)
    assert count == request.sampling.max_tokens, f"{count} tokens of {request.sampling.max_tokens}"


async def score(client: EngineClient, request: GenerateRequest) -> None:
    head = Head(HeadKind.SCORE, labels=LABELS)
    result = await client.head(replace(request, head=head))
    assert len(result.values) == len(LABELS), f"{len(result.values)} scores for {len(LABELS)} labels"

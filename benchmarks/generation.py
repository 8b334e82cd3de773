"""Output tokens per second of the engine against transformers' static batches, in one run on one machine.

The engine runs as it does in production: its own process, reached over ZeroMQ by the client of the doors. The peer
runs in this process while the engine idles. Both make exactly the same numbers of tokens (end-of-sequence ignored),
greedy, in the engine's default precision, sides interleaved. `benchmarks.peers` has the other peers.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.comparison.workload import Job, load_workload
from benchmarks.report import Row, options, publish
from core_engine.contracts import Deadline, GenerateRequest, Pool, SamplingParams
from core_engine.llm.client import EngineClient
from core_engine.llm.gguf_reader import default_model_path

QUICK_TOKENS = 24  # per request, with --quick
STARTUP_S = 60.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one request: to its first token, and per token after it."""

    ttft_s: float
    tpot_s: float


def workload(*, quick: bool) -> tuple[list[Job], str]:
    """W1 and where it comes from."""
    given = load_workload()
    if quick:
        jobs = [Job(job.prompt[:128], QUICK_TOKENS) for job in given.w1[:16]]
        return jobs, f"W1, {given.source}, first 16, cut to {QUICK_TOKENS} out"
    return list(given.w1), f"W1, {given.source}"


@contextmanager
def engine_process(folder: Path) -> Iterator[str]:
    """A real engine process; yields its endpoint."""
    endpoint = f"ipc://{folder}/engine.sock"
    environ = os.environ | {"HEADRACE_ENGINE__ENDPOINT": endpoint, "HEADRACE_STATE_DIR": str(folder / "state")}
    with (folder / "engine.log").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "headrace", "engine"], env=environ, stdout=log, stderr=log)
        try:
            yield endpoint
        finally:
            child.terminate()
            child.wait(30)


async def run_engine(endpoint: str, jobs: list[Job], concurrency: int) -> tuple[float, list[Latency]]:
    """Seconds for all jobs with `concurrency` in flight, and each request's latency."""
    client = EngineClient(endpoint)
    await client.start()
    try:
        await client.wait_available(STARTUP_S)
        queue = list(enumerate(jobs))
        latencies: list[Latency] = []

        async def worker() -> None:
            while queue:
                number, job = queue.pop(0)
                latencies.append(await one(client, number, job))

        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - start, latencies
    finally:
        await client.close()


async def one(client: EngineClient, number: int, job: Job) -> Latency:
    sampling = SamplingParams(max_tokens=job.max_tokens, ignore_eos=True)
    asked = GenerateRequest(f"bench-{number}", job.prompt, sampling, Deadline.never(), Pool.INTERACTIVE)
    start, first, count = time.perf_counter(), 0.0, 0
    async for delta in client.generate(asked):
        first = first or time.perf_counter()
        count += len(delta.token_ids)
    assert count == job.max_tokens, f"{count} tokens of {job.max_tokens}"
    return Latency(first - start, (time.perf_counter() - first) / max(1, count - 1))


def load_peer(dtype: torch.dtype) -> Any:
    """transformers' own reading of the same file; as dense weights, since packed ones are computed in float32."""
    from transformers import AutoModelForCausalLM, GgufConfig

    path, dense = default_model_path(), GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=dtype, quantization_config=dense
    )
    return model.eval()


def run_peer(model: Any, jobs: list[Job], concurrency: int) -> float:
    """Seconds for all jobs in static batches, each as long as its longest request."""
    start = time.perf_counter()
    for first in range(0, len(jobs), concurrency):
        batch = jobs[first : first + concurrency]
        longest, most = max(len(j.prompt) for j in batch), max(j.max_tokens for j in batch)
        ids, mask = torch.full((len(batch), longest), 2), torch.zeros(len(batch), longest, dtype=torch.long)
        for row, job in enumerate(batch):
            ids[row, longest - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, longest - len(job.prompt) :] = 1
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=most,
                min_new_tokens=most,
                pad_token_id=2,
            )
    return time.perf_counter() - start


def compare(endpoint: str, peer: Any, jobs: list[Job], concurrency: int, rounds: int, source: str) -> Row:
    out = sum(job.max_tokens for job in jobs)
    ours, theirs, latencies = [], [], list[Latency]()
    for _ in range(rounds):
        seconds, each = asyncio.run(run_engine(endpoint, jobs, concurrency))
        ours.append(out / seconds)
        latencies += each
        theirs.append(out / run_peer(peer, jobs, concurrency))
    ttft = sorted(latency.ttft_s for latency in latencies)
    return {
        "workload": source,
        "requests": len(jobs),
        "concurrency": concurrency,
        "precision": "bfloat16",
        "rounds": rounds,
        "headrace out tok/s": statistics.median(ours),
        "transformers out tok/s": statistics.median(theirs),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "TTFT p50 ms": 1e3 * ttft[len(ttft) // 2],
        "TTFT p99 ms": 1e3 * ttft[int(0.99 * (len(ttft) - 1))],
        "TPOT p50 ms": 1e3 * statistics.median(latency.tpot_s for latency in latencies),
    }


def main() -> None:
    args = options(__doc__ or "")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    jobs, source = workload(quick=args.quick)
    plan = [(8, jobs[:8]), (1, jobs[:1])] if args.quick else [(32, jobs), (8, jobs[:32]), (1, jobs[:8])]
    peer = load_peer(torch.bfloat16)
    with tempfile.TemporaryDirectory(prefix="hr-") as folder, engine_process(Path(folder)) as endpoint:
        rows = [compare(endpoint, peer, some, c, 1 if args.quick else 3, source) for c, some in plan]
    headline = {f"ratio_to_transformers_c{row['concurrency']}": row["ratio"] for row in rows}
    publish("Generation, SmolLM2-135M-Instruct, greedy", rows, headline, args.json)


if __name__ == "__main__":
    main()

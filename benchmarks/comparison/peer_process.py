"""One peer in its own process and environment, driven by a runner script of `benchmarks/peer-runs`."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison.child import Child, peak_rss
from benchmarks.comparison.installation import Installation, PeerFailed
from benchmarks.comparison.variants import Variant
from benchmarks.comparison.workload import Job

SCRIPTS = Path(__file__).resolve().parents[1] / "peer-runs"
MAX_CONCURRENCY = 32
CONTEXT_TOKENS = 4096
KV_GIB = 1  # the least that vLLM and OpenVINO can be told; 32 requests of W1 hold about 0.2 GiB in bf16


class PeerProcess:
    """A `Side`. The clock runs in the peer's process, around its own loop; only orders go over the pipe."""

    def __init__(
        self,
        variant: Variant,
        installation: Installation,
        scripts: Path = SCRIPTS,
        *,
        patience_s: float | None = None,
    ) -> None:
        """Start it and wait until it is ready, at most `patience_s` if given. Raises `PeerFailed`."""
        self.peak_rss_bytes = 0
        settings = {
            "model": str(installation.model(variant)),
            "mode": variant.mode,
            "threads": len(os.sched_getaffinity(0)),
            "max_concurrency": MAX_CONCURRENCY,
            "context_tokens": CONTEXT_TOKENS,
            "kv_gib": KV_GIB,
            "prefix_cache": True,
        }
        if variant.peer == "llama":
            settings["server"] = str(installation.server_binary())
        environ = installation.environ() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        command = [str(installation.python), str(scripts / variant.script), json.dumps(settings)]
        log = installation.folder / "logs" / f"{variant.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._started_s = time.perf_counter()
        self._child = Child(command, environ, log, piped=True)
        try:
            self._wait_ready(patience_s)
            self.label = variant.label(self._read()["version"])
        except PeerFailed:
            self._child.close()
            raise

    def run(self, jobs: Sequence[Job], concurrency: int) -> float:
        """Seconds for all jobs. Raises `PeerFailed` if the peer fails or makes another number of tokens."""
        order = {"jobs": [[job.prompt, job.max_tokens] for job in jobs], "concurrency": concurrency}
        with peak_rss([self.pid]) as samples:
            reply = self._ask(order)
        self.peak_rss_bytes = max(samples)
        expected = sum(job.max_tokens for job in jobs)
        if reply["tokens"] != expected:
            raise PeerFailed(f"{self.label.name} made {reply['tokens']} tokens, expected {expected}")
        return float(reply["seconds"])

    def save_logits(self, tokens: Sequence[int], path: Path) -> None:
        """As `peer_loop.Peer.save_logits`. Raises `PeerFailed` where the peer cannot tell."""
        self._ask({"prompt": list(tokens), "logits": str(path)})

    def since_start_s(self) -> float:
        return time.perf_counter() - self._started_s

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def close(self) -> None:
        self._child.close()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._child.process.stdin is not None, "the child is piped"
        try:
            self._child.process.stdin.write(json.dumps(order) + "\n")
            self._child.process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"{self.label.name} is gone: {self._child.last_words()}") from None
        return self._read()

    def _wait_ready(self, patience_s: float | None) -> None:
        assert self._child.process.stdout is not None, "the child is piped"
        said, _, _ = select.select([self._child.process.stdout], [], [], patience_s)
        if not said:
            raise PeerFailed(f"it was not ready after {patience_s:g} s")

    def _read(self) -> dict[str, Any]:
        assert self._child.process.stdout is not None, "the child is piped"
        line = self._child.process.stdout.readline()
        if not line:
            self._child.wait_end()
            raise PeerFailed(f"it ended: {self._child.last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerFailed(reply["error"])
        return reply

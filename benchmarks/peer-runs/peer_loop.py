"""The loop of a process that runs one peer: JSON lines in, JSON lines out. Standard library only.

Started by `benchmarks.comparison.peer_process` with the peer's own interpreter and the settings as its argument:
`model` (a path), `threads`, `max_concurrency`, `context_tokens`, `kv_gib`, `prefix_cache`, `mode`. The first line out
tells the version; then each line in is an order and each line out its reply, `{"error": ...}` where it failed. What the
peer itself prints goes to the log.
"""

from __future__ import annotations

import abc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO


class Job(NamedTuple):
    prompt: list[int]
    max_tokens: int


class Peer(abc.ABC):
    version: str

    @abc.abstractmethod
    def run(self, jobs: list[Job], concurrency: int) -> int:
        """Serve `jobs`, at most `concurrency` at once, each to its `max_tokens`; how many tokens were made."""

    def save_logits(self, tokens: list[int], path: str) -> None:
        """What follows each of `tokens`, as a NumPy file: float32 [num_tokens, vocabulary]."""
        raise NotImplementedError("this peer gives no full distributions")

    def close(self) -> None:  # noqa: B027  few have anything to close
        """Let go of what outlives this process."""


def serve(start: Callable[[dict[str, Any]], Peer]) -> None:
    """Start the peer and carry out orders until the input ends."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # from here on, whatever is printed is log
        peer = start(json.loads(sys.argv[1]))
        _reply(replies, {"version": peer.version})
        try:
            for line in sys.stdin:
                _reply(replies, answer(peer, line))
        finally:
            peer.close()


def answer(peer: Peer, line: str) -> dict[str, Any]:
    try:
        return carry_out(peer, json.loads(line))
    except Exception as error:  # noqa: BLE001  the comparison names it and goes on with the others
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def carry_out(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    if "logits" in order:
        peer.save_logits(order["prompt"], order["logits"])
        return {}
    jobs = [Job(*each) for each in order["jobs"]]
    start = time.perf_counter()
    made = peer.run(jobs, order["concurrency"])
    return {"seconds": time.perf_counter() - start, "tokens": made}


def _reply(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()

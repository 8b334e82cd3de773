"""llama.cpp's server, a child of this process, driven over HTTP by one thread per request in flight.

`server` in the settings is its binary. A slot holds as many tokens as the longest request of its `max_concurrency`
needs: with few slots the context is whole, with many it is shared out.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from peer_loop import Job, Peer, serve

HOST = "127.0.0.1"
STARTUP_S = 60.0
SLOT_TOKENS = 1024


class LlamaServer(Peer):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._prefix_cache = settings["prefix_cache"]
        self._port = free_port()
        slots = settings["max_concurrency"]
        context = max(settings["context_tokens"], slots * SLOT_TOKENS)
        command = [settings["server"], "-m", settings["model"], "--host", HOST, "--port", str(self._port), "--no-webui"]
        command += ["-t", str(settings["threads"]), "-tb", str(settings["threads"])]
        command += ["-np", str(slots), "-c", str(context), "--kv-unified"]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._wait()
        self.version = self._ask("GET", "/props").get("build_info", "unknown")

    def run(self, jobs: list[Job], concurrency: int) -> int:
        with ThreadPoolExecutor(concurrency) as threads:
            return sum(threads.map(self._complete, jobs))

    def close(self) -> None:
        self._child.terminate()
        self._child.wait(30)

    def _complete(self, job: Job) -> int:
        body = {
            "prompt": job.prompt,
            "n_predict": job.max_tokens,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": self._prefix_cache,
        }
        made: int = self._ask("POST", "/completion", body)["tokens_predicted"]
        return made

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {content[:200]!r}")
        reply: dict[str, Any] = json.loads(content)
        return reply

    def _wait(self) -> None:
        until_s = time.monotonic() + STARTUP_S
        while True:
            try:
                self._ask("GET", "/health")
                return
            except (OSError, RuntimeError) as error:
                if time.monotonic() > until_s or self._child.poll() is not None:
                    raise RuntimeError(f"llama-server did not come up: {error}") from None
                time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(LlamaServer)

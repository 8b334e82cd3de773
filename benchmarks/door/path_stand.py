"""The processes of `benchmarks/http_path.py`: fake engine, real door, readers, and the bare server beside them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import msgspec

from benchmarks.comparison.child import Child
from benchmarks.door.bare_stream import HOST, read_events
from benchmarks.door.fake_engine import Pace, Steps
from benchmarks.door.line_process import LineProcess, ProcessFailed
from benchmarks.door.path_figures import Figures, bare_figures, stream_figures, whole_figures
from benchmarks.door.stream_readers import Reading, Seen
from core_engine.llm.tokenizer import Tokenizer
from core_engine.settings import EngineSettings
from headrace.loadgen.targets import CHAT
from headrace.runtime import free_port
from headrace.wheels import model_file

READY_S: Final = 30.0
ENDLESS: Final = 1 << 19  # tokens: nobody reads a stream to its end
NOWHERE: Final = "redis://127.0.0.1:1/0"  # chats read no features
TEXT: Final = (
    " Flights leave late when the weather is bad, when the aircraft came late, or when the airport is full; most days"
    " it is a little of each."
)


@dataclass(slots=True)
class PathStand:
    """Loads of `num_streams` streams each, one after the other."""

    folder: Path
    num_streams: int
    engine: LineProcess
    readers: LineProcess
    endpoint: str
    settings: EngineSettings = field(default_factory=EngineSettings)
    token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.token_ids = tuple(Tokenizer.from_path(model_file(self.settings)).encode(TEXT))

    @contextmanager
    def door(self, *command: str) -> Iterator[Server]:
        """`command` serves as `headrace door` does."""
        port = free_port(HOST)
        environ = os.environ | {
            "HEADRACE_STATE_DIR": str(self.folder),
            "HEADRACE_HTTP__PORT": str(port),
            "HEADRACE_HTTP__MAX_STREAMS": str(self.num_streams),
            "HEADRACE_ENGINE__ENDPOINT": self.endpoint,
            "HEADRACE_REDIS__URL": NOWHERE,
        }
        with self._server(port, command, environ, "door.log") as server:
            server.wait("/readyz", lambda reply: bool(reply.json()["engine"]["available"]))
            yield server

    @contextmanager
    def bare(self, events: Path) -> Iterator[Server]:
        """The bare server, which says the events of a file over and over."""
        port = free_port(HOST)
        with self._server(
            port, ("benchmarks.door.bare_stream", str(port), str(events)), os.environ, "bare.log"
        ) as server:
            server.wait("/", lambda reply: reply.status_code == httpx.codes.NOT_FOUND)
            yield server

    def record(self, door: Server) -> Path:
        """A file of the tokens' events as the door writes them."""
        self._tell_engine(Pace(1, 1000.0, self.token_ids))
        body = {
            "model": self.settings.model_name,
            "messages": [{"role": "user", "content": "Why?"}],
            "max_tokens": len(self.token_ids),
            "stream": True,
        }
        reply = httpx.post(door.url + CHAT, json=body, timeout=READY_S).raise_for_status()
        self.engine.hear()
        path = self.folder / "events"
        path.write_bytes(reply.content)
        events = read_events(path)[1:-2]  # less role, finish reason and [DONE]
        assert len(events) == len(self.token_ids), f"{len(self.token_ids)} tokens made {len(events)} events"
        path.write_bytes(b"".join(events))
        return path

    def stream(self, door: Server, tokens_per_s: float, seconds: float, warm_up_s: float) -> Figures:
        pace = Pace(self.num_streams, tokens_per_s, self.token_ids)
        self._tell_engine(pace)
        seen = self._read(door.url, door, ENDLESS, seconds=seconds, warm_up_s=warm_up_s)
        return stream_figures(seen, msgspec.json.decode(self.engine.hear(), type=Steps), pace)

    def whole(self, door: Server, tokens_per_s: float, max_tokens: int) -> Figures:
        """As many replies in one piece as there are streams, of `max_tokens` each."""
        pace = Pace(self.num_streams, tokens_per_s, self.token_ids)
        self._tell_engine(pace)
        seen = self._read(door.url, door, max_tokens, stream=False)
        self.engine.hear()
        return whole_figures(seen, pace, max_tokens)

    def bare_stream(self, bare: Server, tokens_per_s: float, seconds: float, warm_up_s: float) -> Figures:
        url = f"{bare.url}/{tokens_per_s / self.num_streams:f}"
        return bare_figures(self._read(url, bare, ENDLESS, seconds=seconds, warm_up_s=warm_up_s), tokens_per_s)

    def _tell_engine(self, pace: Pace) -> None:
        self.engine.tell(msgspec.json.encode(pace))

    def _read(
        self,
        url: str,
        server: Server,
        max_tokens: int,
        *,
        seconds: float = 0.0,
        warm_up_s: float = 0.0,
        stream: bool = True,
    ) -> Seen:
        pids = {"server": server.child.process.pid}
        reading = Reading(url, self.settings.model_name, self.num_streams, pids, max_tokens, seconds, warm_up_s, stream)
        self.readers.tell(msgspec.json.encode(reading))
        return msgspec.json.decode(self.readers.hear(), type=Seen)

    @contextmanager
    def _server(self, port: int, command: tuple[str, ...], environ: Mapping[str, str], log: str) -> Iterator[Server]:
        child = Child([sys.executable, "-m", *command], environ, self.folder / log)
        try:
            yield Server(f"http://{HOST}:{port}", child)
        finally:
            child.close()


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    child: Child

    def wait(self, path: str, is_ready: Callable[[httpx.Response], bool]) -> None:
        """Raises `ProcessFailed` where it ends, or is not ready in time."""
        until_s = time.monotonic() + READY_S
        while time.monotonic() < until_s and self.child.process.poll() is None:
            try:
                if is_ready(httpx.get(self.url + path)):
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise ProcessFailed(f"{self.url} does not serve: {self.child.last_words()}")


@contextmanager
def path_stand(folder: Path, num_streams: int) -> Iterator[PathStand]:
    endpoint = f"ipc://{folder}/engine.sock"
    with (
        LineProcess("benchmarks.door.fake_engine", folder, endpoint) as engine,
        LineProcess("benchmarks.door.stream_readers", folder) as readers,
    ):
        yield PathStand(folder, num_streams, engine, readers, endpoint)

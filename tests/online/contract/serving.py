"""A door on a real, tiny engine that needs keys, in a thread of its own, as a stranger meets it: by a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from core_engine.llm.tokenizer import Tokenizer
from core_engine.readers import StoredPrediction
from core_engine.tenants.keys import NewKey, new_key
from core_engine.tenants.quotas import Quota, Quotas
from core_engine.tenants.view import StoredKey, TenantView
from online.access.gate import OPERATOR, Gate
from tests.online.conftest import opened_door
from tests.online.real_door import real_door

STORED = "JFK-LAX"


@dataclass(frozen=True)
class Stranger:
    """Whoever has nothing but the URL and a key. The key may read every tenant's metrics."""

    url: str
    key: str
    http: httpx.Client

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/openapi.json", headers=self.headers).json()
        return found

    def send(self, request: bytes) -> bytes:
        """All that comes back on a connection of its own until the door closes it."""
        at = urlsplit(self.url)
        with socket.create_connection((at.hostname or "", at.port or 0), timeout=60) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def gate_for(key: NewKey) -> Gate:
    stored = StoredKey(key.prefix, OPERATOR, key.digest, datetime.now(UTC))
    return Gate(Quotas(Quota()), lambda: TenantView(keys={key.prefix: stored}), needs_key=True)


@contextmanager
def served(folder: Path, tokenizer: Tokenizer) -> Iterator[Stranger]:
    """When it is over, nothing that was sent may have left anything behind."""
    key, started = new_key(), Future[tuple[str, Callable[[], object]]]()

    async def serve() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        async with opened_door(folder, tokenizer) as door:
            door.predictions.stored[STORED] = StoredPrediction(0.25, "g1", 30.0)
            async with real_door(door, gate=gate_for(key), is_bounded=True) as real:
                started.set_result((str(real.http.base_url), partial(loop.call_soon_threadsafe, over.set)))
                await over.wait()
                await real.quiet()

    with ThreadPoolExecutor(1, thread_name_prefix="door") as pool:
        serving = pool.submit(asyncio.run, serve())
        either: list[Future[Any]] = [serving, started]
        wait(either, return_when=FIRST_COMPLETED)
        if not started.done():
            serving.result()  # says why it did not start
        url, end = started.result()
        try:
            with httpx.Client(base_url=url, timeout=60) as http:
                yield Stranger(url, key.key, http)
        finally:
            end()
        serving.result()

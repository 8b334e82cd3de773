"""A door on a real, tiny engine behind a real server, with the official client. Its letters are single tokens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn
from openai import AsyncOpenAI
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core_engine.llm.client import EngineClient
from core_engine.llm.gguf_vocabulary import byte_level_vocabulary
from core_engine.llm.grammar import Grammars
from core_engine.llm.tokenizer import Tokenizer
from core_engine.metrics import Metrics
from core_engine.predictors.system_prompt import SystemPrompts
from online.access.connection import Bounds, bounded_http
from online.access.gate import Gate
from online.app import create_app
from online.services import Services
from tests.core_engine.llm.running import Served, running
from tests.core_engine.llm.test_client_and_server import until
from tests.core_engine.llm.tiny import CONFIG, EOS, tiny_engine, tiny_tokenizer
from tests.online.conftest import DoorUnderTest

TEMPLATE = "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
MESSAGES: Any = [{"role": "user", "content": "Say something."}]


@dataclass
class RealDoor:
    """`openai` checks every reply against the client's types. `lenient` does not: by these, a chunk of a completion has
    always a finish reason, which OpenAI's own have not."""

    services: Services
    served: Served
    client: EngineClient
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    lenient: AsyncOpenAI

    async def quiet(self) -> None:
        """Wait until no request is in the door and nothing in the engine, and look that nothing is left behind."""
        while (await self.http.get("/readyz")).json()["in_flight"]:
            pass
        await until(lambda: not len(self.served.server.attempts) and self._free == self._total)
        assert self.services.state.streams == 0

    @property
    def _free(self) -> int:
        return self.client.snapshot.free_blocks if self.client.snapshot else -1

    @property
    def _total(self) -> int:
        return self.served.engine.scheduler.blocks.total


def chat_tokenizer() -> Tokenizer:
    """That of the tiny engine, with a chat template."""
    tokens = tiny_tokenizer().tokens
    return Tokenizer(byte_level_vocabulary(tokens, [], frozenset({EOS}), "gpt-2", EOS, TEMPLATE))


@asynccontextmanager
async def real_door(
    door: DoorUnderTest, *, num_blocks: int = 65, gate: Gate | None = None, is_bounded: bool = False
) -> AsyncIterator[RealDoor]:
    """`is_bounded`: with the protocol that bounds connections, as a served door has it."""
    grammars = Grammars(chat_tokenizer, CONFIG.vocab_size, frozenset({EOS}))
    async with running(tiny_engine(num_blocks=num_blocks, grammars=grammars)) as (client, served):
        tokenizer = chat_tokenizer()
        services = replace(
            door.services,
            client=client,
            tokenizer=tokenizer,
            system_prompts=SystemPrompts(tokenizer),
            http=door.services.http.model_copy(update={"max_streams": 1000, "max_body_bytes": 1 << 20}),
            metrics=Metrics(),
            gate=gate or door.services.gate,
        )
        protocol = bounded_http(Bounds(services.http, list[str]().append)) if is_bounded else HttpToolsProtocol
        async with listening(create_app(services), protocol) as url:
            strict, lenient = (official_client(url, strict=strict) for strict in (True, False))
            async with httpx.AsyncClient(base_url=url, timeout=30) as http, strict, lenient:
                yield RealDoor(services, served, client, http, strict, lenient)
    grammars.close()


@asynccontextmanager
async def listening(app: ASGIApp, http: type[HttpToolsProtocol] = HttpToolsProtocol) -> AsyncIterator[str]:
    """The app behind a real server; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=http, log_config=None, access_log=False, lifespan="on")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


def official_client(url: str, *, strict: bool) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30, _strict_response_validation=strict
    )

"""One port: of one process that is alone, or reserved for workers, and nobody else's meanwhile."""

from __future__ import annotations

import asyncio
import resource
import socket

import pytest
import uvloop

from core_engine.errors import ConfigurationError
from core_engine.settings import HttpSettings
from headrace.door_socket import ACCEPTED_PER_TURN, OTHER_FILES, accepting, hold_files, listen, of_worker, reserve
from headrace.runtime import free_port

HOST = "127.0.0.1"


@pytest.fixture
def http() -> HttpSettings:
    return HttpSettings(port=free_port(HOST), workers=2)


def test_workers_listen_side_by_side_on_a_reserved_port(http: HttpSettings) -> None:
    with reserve(http), of_worker(http) as first, of_worker(http) as second:
        for worker in (first, second):
            worker.listen()
        with socket.create_connection((HOST, http.port)):
            pass


def test_nobody_is_let_wait_for_a_worker_that_does_not_serve_yet(http: HttpSettings) -> None:
    with reserve(http), of_worker(http), pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, http.port))


def test_a_port_on_which_somebody_listens_is_not_reserved(http: HttpSettings) -> None:
    with listen(http), pytest.raises(ConfigurationError, match="is in use; set HEADRACE_HTTP__PORT"):
        reserve(http)


def test_another_door_s_workers_do_not_share_their_port(http: HttpSettings) -> None:
    """They would if nobody looked: the kernel lets sockets of one user share."""
    with reserve(http), of_worker(http) as worker:
        worker.listen()
        with pytest.raises(ConfigurationError, match="is in use"):
            reserve(http)
        with pytest.raises(ConfigurationError, match="is in use"):
            listen(http)


def test_many_connections_are_taken_in_one_turn_of_the_loop(http: HttpSettings) -> None:
    with listen(http) as listener:
        turns = uvloop.run(turns_to_accept(listener, 2 * ACCEPTED_PER_TURN))
    assert max(turns) - min(turns) <= 3, "with one socket, each takes one"


async def turns_to_accept(listener: socket.socket, num_clients: int) -> list[int]:
    """In which turn of the loop each of clients that have all connected was taken."""
    loop, turn, taken, all_taken = asyncio.get_running_loop(), 0, list[int](), asyncio.Event()

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.append(turn)
            transport.close()
            if len(taken) == num_clients:
                all_taken.set()

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    clients = [socket.create_connection(listener.getsockname()) for _ in range(num_clients)]
    servers = [await loop.create_server(Taken, sock=each) for each in accepting(listener)]
    count()
    async with asyncio.timeout(60):
        await all_taken.wait()
    for server in servers:
        server.close()
    for client in clients:
        client.close()
    return taken


def test_files_for_the_connections_are_asked_of_the_system_or_the_fault_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    hold_files(2048)
    assert limits[-1] == (2048 + OTHER_FILES, 4096)
    hold_files(100)
    assert len(limits) == 2, "there are enough"
    with pytest.raises(ConfigurationError, match=r"5000 connections need 5512 .* may have 4096 .*MAX_CONNECTIONS"):
        hold_files(5000)

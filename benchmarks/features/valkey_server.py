"""A Valkey on loopback, without persistence, for the length of a measurement."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.runtime import free_port
from headrace.wheels import valkey_server

HOST = "127.0.0.1"


@contextmanager
def valkey() -> Iterator[int]:
    """Its port, once it accepts connections, which it says on its own output."""
    port = free_port(HOST)
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        command = [str(valkey_server()), "--port", str(port), "--bind", HOST, "--dir", folder]
        command += ["--save", "", "--appendonly", "no", "--loglevel", "notice"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert server.stdout is not None
        try:
            if not any("eady to accept connections" in line for line in server.stdout):
                raise RuntimeError("valkey did not start")
            yield port
        finally:
            server.kill()
            server.communicate()

"""The port of the HTTP door: taken before anything slow is built, by the one process or for its several workers.

Workers have a listening socket each (SO_REUSEPORT), and the kernel gives a new connection to one of them by a hash of
its addresses. With one socket shared by all, the worker that wakes first takes whatever has come: of 64 connections
opened at once, 4 workers had 2, 9, 20 and 33 (by the hash 13, 15, 16 and 20), for as long as these live. And a worker
that is not there is given nothing: no connection waits for it to be restarted.
"""

from __future__ import annotations

import errno
import resource
import socket

from core_engine.errors import ConfigurationError
from core_engine.settings import HttpSettings

BACKLOG = 2048
SEND_BUFFER_BYTES = 64 << 10  # of each connection, in the kernel; left alone it takes megabytes for who does not read
ACCEPTED_PER_TURN = 16
OTHER_FILES = 512  # that a process of the door has open besides its connections: engine, Redis, database, spools


def listen(http: HttpSettings) -> socket.socket:
    """A listening socket of one process that is alone.

    Raises:
        ConfigurationError: names the port, the fault and the setting.
    """
    listener = _bound(http, is_shared=False)
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _fault(http, error) from None
    return listener


def reserve(http: HttpSettings) -> socket.socket:
    """The port for workers: bound as long as the socket is open, and not listened on. Raises as `listen` does, for any
    other server too, one with workers of its own included."""
    listen(http).close()
    return _bound(http, is_shared=True)


def of_worker(http: HttpSettings) -> socket.socket:
    """One worker's socket on the reserved port; the server listens on it when it is ready. Raises as `listen` does."""
    return _bound(http, is_shared=True)


def accepting(listener: socket.socket) -> list[socket.socket]:
    """`listener` and copies of it, for a server that serves several.

    libuv takes one connection of each listening socket in a turn of its loop. At a busy door a turn is 10 ms, and of
    clients that connect at once, as after a restart, the tenth would wait for 0.1 s.
    """
    return [listener, *(listener.dup() for _ in range(ACCEPTED_PER_TURN - 1))]


def hold_files(max_connections: int) -> None:
    """Let this process have as many files open as so many connections need.

    Raises:
        ConfigurationError: the system does not allow it.
    """
    needed = max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigurationError(
            f"{max_connections} connections need {needed} open files, and this process may have {hard} (ulimit -Hn); "
            "set HEADRACE_HTTP__MAX_CONNECTIONS to fewer"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _bound(http: HttpSettings, *, is_shared: bool) -> socket.socket:
    listener: socket.socket | None = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise _fault(http, error) from None
    return listener


def _fault(http: HttpSettings, error: OSError) -> ConfigurationError:
    why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
    return ConfigurationError(f"port {http.port} on {http.host} {why}; set HEADRACE_HTTP__PORT to another port")

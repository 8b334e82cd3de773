"""What a local stack needs of the machine: free ports, a private folder for sockets, sole use of a state folder; and
how old a process is."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core_engine.errors import ConfigurationError

IPC_PATH_LIMIT = (
    100  # a Unix socket's path has 104 (macOS) or 108 (Linux) bytes, the suffix `.hb` and a zero among them
)
PREFIX = "hr-"
LONGEST_SOCKET = "engine.sock.hb"


def check_free(host: str, port: int, setting: str) -> None:
    """Raises `ConfigurationError` when `port` cannot be bound on `host`; the sentence names port and setting."""
    try:
        _bound(host, port).close()
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise ConfigurationError(f"port {port} on {host} {why}; set {setting} to another port") from None


def process_age_s() -> float:
    """Seconds since this process was started, to 10 ms, imports included; 0 where the kernel does not tell."""
    try:
        stat = Path("/proc/self/stat").read_text()
        started_ticks = int(stat.rpartition(")")[2].split()[19])  # field 22; the name before it may hold anything
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


def free_port(host: str) -> int:
    """A port that nobody listens on now. Another process may take it first; its owner then fails with a sentence."""
    with _bound(host, 0) as sock:
        return int(sock.getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: the last one's TIME_WAIT is no obstacle
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


@contextmanager
def socket_folder(link: Path) -> Iterator[Path]:
    """A private folder (mode 0700) with a path short enough for Unix sockets; removed at the end.

    `link` points at it meanwhile, for people to find it; whoever holds the link's folder may call this. A folder that
    it still points at was left by a stack that was killed, and is removed.
    """
    _remove_left(link)
    default = Path(tempfile.gettempdir())
    is_short = len(str(default / f"{PREFIX}12345678" / LONGEST_SOCKET).encode()) <= IPC_PATH_LIMIT
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=default if is_short else "/tmp") as folder:
        link.symlink_to(folder)
        try:
            yield Path(folder)
        finally:
            link.unlink()


def _remove_left(link: Path) -> None:
    if link.is_symlink():
        if link.readlink().name.startswith(PREFIX):
            shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink()


@contextmanager
def sole_use(state_dir: Path, *, fresh: bool = False) -> Iterator[None]:
    """Hold `state_dir` for this process; created where it does not exist, emptied first where it is to be `fresh`.

    Raises:
        ConfigurationError: another stack holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    lock = state_dir / "stack.lock"
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigurationError(
                f"state folder {state_dir} is in use by another stack (process {file.read().strip() or 'unknown'}); "
                "stop it or set HEADRACE_STATE_DIR"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        if fresh:
            _empty(state_dir, keep=lock)
        yield


def _empty(folder: Path, keep: Path) -> None:
    for path in folder.iterdir():
        if path.is_symlink():
            continue  # `socket_folder` looks at it next
        if path.is_dir():
            shutil.rmtree(path)
        elif path != keep:
            path.unlink()

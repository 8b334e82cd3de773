"""A process that is told a line of JSON and answers with one, until its input ends. It stays for a whole benchmark: a
start takes a second, mostly imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.comparison.child import Child


class ProcessFailed(Exception):
    """It ended instead of answering; its last words say why."""


def answer(line: bytes) -> None:
    """The child's side: print all of a line. An unbuffered standard output takes as much of it as the pipe holds."""
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(line + b"\n")


class LineProcess:
    """The parent's side, as a context. Runs `module` with `args`; its log lies in `folder`."""

    def __init__(self, module: str, folder: Path, *args: str) -> None:
        command = [sys.executable, "-m", module, *args]
        self._child = Child(command, os.environ, folder / f"{module.rpartition('.')[2]}.log", piped=True)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close()

    def tell(self, line: bytes) -> None:
        stdin = self._child.process.stdin
        assert stdin is not None
        stdin.write(line.decode() + "\n")
        stdin.flush()

    def hear(self) -> str:
        """Its next line.

        Raises:
            ProcessFailed: it ended first.
        """
        stdout = self._child.process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            self._child.wait_end()
            raise ProcessFailed(self._child.last_words())
        return line

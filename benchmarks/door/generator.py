"""The load generator in a process of its own: a line of options in, a line of report out, until the input ends.

It stays for a whole benchmark: a start takes a second, mostly imports, and there are a dozen loads.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import uvloop

from benchmarks.comparison.child import Child
from core_engine.settings import EngineSettings
from headrace.bench_serve import ServeOptions, drive, prepare
from headrace.heap import settle
from headrace.loadgen.report import Report, report


class GeneratorFailed(Exception):
    """It ended instead of answering; its last words say why."""


class Generator:
    """The parent's side, as a context."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.door.generator"]
        self._child = Child(command, os.environ, folder / "generator.log", piped=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close()

    async def load(self, options: ServeOptions) -> Report:
        """Run one load to its end.

        Raises:
            GeneratorFailed: it ended first.
        """
        return await asyncio.to_thread(self._load, options)

    def _load(self, options: ServeOptions) -> Report:
        stdin, stdout = self._child.process.stdin, self._child.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(options, enc_hook=str).decode() + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            self._child.wait_end()
            raise GeneratorFailed(self._child.last_words())
        made: Report = json.loads(line)
        return made


def main() -> None:
    for line in sys.stdin:
        options = msgspec.json.decode(line, type=ServeOptions, dec_hook=_path)
        ready = prepare(options, EngineSettings())
        settle()
        uvloop.run(drive(ready, options))
        print(json.dumps(report(ready.plan, ready.target, ready.run)), flush=True)


def _path(kind: type, value: Any) -> Path:
    assert kind is Path, f"options hold no {kind}"
    return Path(value)


if __name__ == "__main__":
    main()

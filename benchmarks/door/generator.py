"""The load generator in a process of its own: a line of options in, a line of report out."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.door.line_process import LineProcess, answer
from core_engine.settings import EngineSettings
from headrace.bench_serve import ServeOptions, drive, prepare
from headrace.heap import settle
from headrace.loadgen.report import Report, report


class Generator(LineProcess):
    """The parent's side, as a context."""

    def __init__(self, folder: Path) -> None:
        super().__init__("benchmarks.door.generator", folder)

    async def load(self, options: ServeOptions) -> Report:
        """Run one load to its end.

        Raises:
            ProcessFailed: it ended first.
        """
        return await asyncio.to_thread(self._load, options)

    def _load(self, options: ServeOptions) -> Report:
        self.tell(msgspec.json.encode(options, enc_hook=str))
        made: Report = json.loads(self.hear())
        return made


def main() -> None:
    for line in sys.stdin:
        options = msgspec.json.decode(line, type=ServeOptions, dec_hook=_path)
        ready = prepare(options, EngineSettings())
        settle()
        uvloop.run(drive(ready, options))
        answer(json.dumps(report(ready.plan, ready.target, ready.run)).encode())


def _path(kind: type, value: Any) -> Path:
    assert kind is Path, f"options hold no {kind}"
    return Path(value)


if __name__ == "__main__":
    main()

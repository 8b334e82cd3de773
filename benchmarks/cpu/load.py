"""From a process's start to its first token, and the memory that it has then: a process that measures itself.

    python -m benchmarks.cpu.load int8    # prints one line of JSON

The parent's clock is not needed: the kernel knows when a process was started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.cpu.driving import DrivenEngine, roomy
from benchmarks.report import Row
from core_engine.llm import model_decoder
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.model_decoder import AnyDecoder
from core_engine.settings import EngineSettings
from headrace.engine import build_engine
from headrace.runtime import process_age_s
from kernels.linear import Weight

CONCURRENCY, CONTEXT, PROMPT = 32, 256, 32


def load_rows(*, quick: bool) -> list[Row]:
    """The fastest of some processes for each precision; the first one may have to convert the weights, or wait for
    the disk.
    """
    rows: list[Row] = []
    for weights in ("int8",) if quick else ("int8", "int4", "bfloat16"):
        found = [measured(weights) for _ in range(2 if quick else 5)]
        rows.append({"weights": weights} | min(found[1:], key=lambda each: float(each["first token s"])))
    return rows


def measured(weights: str) -> Row:
    done = subprocess.run([sys.executable, "-m", __name__, weights], capture_output=True, text=True, check=True)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def rss_mb() -> float:
    """Of this process, now."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant: seconds since the process was started, and CPU seconds of all its threads by then."""

    age: float
    cpu: float

    @classmethod
    def now(cls) -> Mark:
        return cls(process_age_s(), time.process_time())


def marked() -> tuple[dict[str, Mark], DrivenEngine]:
    """The marks at the end of each part, in order, the last at the first token; and the engine."""
    marks = {"imports": Mark.now()}

    def packing(config: ModelConfig, weights: dict[str, Weight], dials: model_decoder.Dials) -> AnyDecoder:
        marks["weights"] = Mark.now()
        decoder = make_decoder(config, weights, dials)
        marks["packing"] = Mark.now()
        return decoder

    make_decoder = model_decoder.make_decoder
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with patch.object(model_decoder, "make_decoder", packing):
        engine, _ = build_engine(roomy(EngineSettings.model_validate({"weights": sys.argv[1]}).weights, "model"))
    marks["engine"] = Mark.now()
    driven = DrivenEngine(engine)
    driven.prefill(PROMPT)
    marks["first token"] = Mark.now()
    return marks, driven


def main() -> None:
    """One line of JSON: seconds to the first token and of each part, `wall / CPU`, and the memory."""
    marks, driven = marked()
    row: Row = {"first token s": marks["first token"].age, "CPU s": marks["first token"].cpu}
    before = Mark(0.0, 0.0)
    for part, mark in marks.items():
        row[f"{part}, wall / CPU"] = f"{mark.age - before.age:.2f} / {mark.cpu - before.cpu:.2f}"
        before = mark
    row["RSS MB"] = rss_mb()
    driven.decode(CONCURRENCY, CONTEXT, 20)
    row[f"RSS MB at concurrency {CONCURRENCY}"] = rss_mb()
    driven.close()
    print(json.dumps(row))


if __name__ == "__main__":
    main()

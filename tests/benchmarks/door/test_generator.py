"""The generator's process takes options as it was given them, answers with a report, and says why when it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.door.generator import Generator
from benchmarks.door.line_process import ProcessFailed
from headrace.bench_serve import ServeOptions
from headrace.loadgen.arrivals import Arrivals
from tests.headrace.loadgen.server import predicts, serving


@pytest.fixture
def bodies(tmp_path: Path) -> Path:
    path = tmp_path / "bodies.jsonl"
    path.write_text('{"inputs": {}}\n')
    return path


async def test_one_process_runs_one_load_after_the_other(bodies: Path, tmp_path: Path) -> None:
    async with serving(predicts) as server:
        with Generator(tmp_path) as generator:
            for rate in (100.0, 50.0):
                asked = ServeOptions(server.url, predict="delay_risk", bodies=bodies, rate=rate, duration_s=0.2)
                made = await generator.load(_now(asked))
                assert (made["arrivals"], made["num_prompts"]) == ("constant", round(rate * 0.2))
                assert made["rungs"] == {"model": 1.0}
                assert made["goodput"] == {"e2el": 50.0}


async def test_options_that_cannot_be_end_it_with_their_sentence(tmp_path: Path) -> None:
    with Generator(tmp_path) as generator, pytest.raises(ProcessFailed, match=r"gone.jsonl cannot be read"):
        await generator.load(_now(ServeOptions("http://door", predict="delay_risk", bodies=tmp_path / "gone.jsonl")))


def _now(options: ServeOptions) -> ServeOptions:
    return replace(options, arrivals=Arrivals.CONSTANT, warm_up_s=0.0, goodput=("e2el:50",))

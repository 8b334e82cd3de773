"""`headrace bench serve`: options that do not fit are refused before anything is sent; a run ends in a report."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from core_engine.contracts import Monotonic
from core_engine.errors import ConfigurationError
from core_engine.settings import EngineSettings
from headrace.bench_serve import ServeOptions, drive, prepare
from headrace.loadgen.arrivals import Arrivals
from headrace.loadgen.report import Report, report
from tests.core_engine.simulation.traces import azure, lengths
from tests.headrace.loadgen.server import Asked, predicts, serving
from tests.headrace.test_cli import headrace, sentence_of

ENGINE = EngineSettings()


@pytest.fixture
def bodies(tmp_path: Path) -> Path:
    path = tmp_path / "bodies.jsonl"
    path.write_text('{"inputs": {"origin": "JFK"}}\n')
    return path


@pytest.fixture
def options(bodies: Path) -> ServeOptions:
    """A run that is over at once."""
    asked = ServeOptions("http://127.0.0.1:1", predict="delay_risk", bodies=bodies, rate=256.0, duration_s=0.125)
    return replace(asked, warm_up_s=0.0625, goodput=("e2el:1000",))


async def run(options: ServeOptions, clock: Monotonic = time.perf_counter) -> Report:
    ready = prepare(options, ENGINE)
    ready.run.clock = clock
    await drive(ready, options)
    return report(ready.plan, ready.target, ready.run)


async def test_an_open_loop_sends_what_is_due_and_reports_it(options: ServeOptions) -> None:
    async with serving(predicts) as server:
        made = await run(replace(options, url=server.url, arrivals=Arrivals.CONSTANT))
    assert len(server.asked) == 48  # 256 a second for 0.1875 s
    assert (made["num_prompts"], made["warm_up_requests"], made["failed"]) == (32, 16, 0)
    assert (made["arrivals"], made["request_rate"], made["endpoint"]) == ("constant", 256.0, "/v1/predict/delay_risk")
    assert made["rungs"] == {"model": 1.0}
    assert made["connections"]["limit"] == 512


async def test_a_closed_loop_has_to_be_asked_for(options: ServeOptions) -> None:
    looks = itertools.count()  # time passes where it is looked at, so that a stall leaves nothing out
    async with serving(predicts) as server:
        made = await run(replace(options, url=server.url, rate=None, concurrency=2), lambda: next(looks) / 1024)
    assert (made["arrivals"], made["max_concurrency"], made["request_rate"]) == ("closed_loop", 2, None)
    assert made["max_concurrent_requests"] == 2
    assert made["completed"] > 0


async def test_a_trace_gives_times_and_lengths(options: ServeOptions, tmp_path: Path) -> None:
    async def streams(asked: Asked) -> None:
        asked.stream('{"choices": [{"text": "a"}]}', "[DONE]")

    trace = azure(tmp_path / "t.csv", [(0.0, 30, 5), (1.0, 12, 6), (50.0, 9, 9)])
    lm = replace(options, predict=None, bodies=None, completions="m", trace=trace, rate=None)
    async with serving(streams) as server:
        made = await run(replace(lm, url=server.url, arrivals=Arrivals.TRACE, speed=20.0, warm_up_s=0.0))
    asked = {(len(each.json()["prompt"].split()), each.json()["max_tokens"]) for each in server.asked}
    assert (asked, len(server.asked)) == ({(30, 5), (12, 6)}, 2)
    assert (made["arrivals"], made["distinct_bodies"], made["tokens_counted_by"]) == ("trace", 2, "chunks")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"predict": None}, "by one of --predict, --chat and --completions"),
        ({"chat": "m"}, "by one of --predict, --chat and --completions"),
        ({"bodies": None}, "--predict needs --bodies"),
        ({"input_len": 5}, "--predict needs --bodies alone"),
        ({"rate": None}, "give --rate .* or --concurrency"),
        ({"arrivals": Arrivals.TRACE}, "--arrivals trace takes its times from --trace"),
        ({"predict": None, "chat": "m"}, "--bodies is for --predict"),
        ({"predict": None, "chat": "m", "bodies": None}, "one of --prompts, --trace and --input-len"),
        ({"url": "door"}, "--url 'door'"),
        ({"headers": ("Authorization",)}, "--header 'Authorization', expected NAME: VALUE"),
        ({"goodput": ("fast",)}, "--goodput 'fast'"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    options: ServeOptions, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        prepare(replace(options, **changes), ENGINE)  # type: ignore[arg-type]


def test_a_backlog_has_lengths_and_no_times(options: ServeOptions, tmp_path: Path) -> None:
    trace = lengths(tmp_path / "backlog.csv", [(3, 4), (5, 6)])
    lm = replace(options, predict=None, bodies=None, chat="m", trace=trace)
    assert [json.loads(body)["max_tokens"] for body in prepare(lm, ENGINE).target.bodies] == [4, 6]
    with pytest.raises(ConfigurationError, match="has no arrival times"):
        prepare(replace(lm, rate=None, arrivals=Arrivals.TRACE), ENGINE)
    with pytest.raises(ConfigurationError, match="--output-len: a trace has its own lengths"):
        prepare(replace(lm, output_len=3), ENGINE)


def test_the_command_counts_a_server_that_is_not_there_and_writes_report_and_plot(bodies: Path, tmp_path: Path) -> None:
    asked = ("--predict", "delay_risk", "--bodies", str(bodies), "--rate", "40", "--duration", "0.2", "--warm-up", "0")
    files = ("--json", str(tmp_path / "run.json"), "--plot", str(tmp_path / "run.png"))
    done = headrace("bench", "serve", "--url", "http://127.0.0.1:1", *asked, *files, state=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "run.json").read_text())
    assert made["completed"] == 0
    assert made["failed"] == made["errors"]["connect"]["count"] > 0
    assert "x connect" in done.stdout
    assert (tmp_path / "run.png").stat().st_size > 0


def test_the_commands_mistakes_are_one_sentence(bodies: Path, tmp_path: Path) -> None:
    done = headrace("bench", "serve", "--predict", "delay_risk", "--bodies", str(bodies), state=tmp_path)
    assert "give --rate (requests per second)" in sentence_of(done)


def test_the_generator_is_small_it_imports_neither_torch_nor_the_database() -> None:
    code = "import sys, headrace.bench_serve; print({'torch', 'sqlalchemy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr

"""`headrace batch` as a user runs it: real processes, a real Valkey, an engine with a scorer; killed, and resumed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet
import pytest
import zmq

from core_engine.contracts import Deadline, Rung
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import read_spool
from core_engine.predictors.declaration import Artifact, Precomputed, Predictor, TorchScorer
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import RedisSettings
from featurestore.online.connection import connect
from featurestore.prediction_reader import OnlinePredictionReader
from headrace.migrations import upgrade
from tests.core_engine.llm.running import Served, serve
from tests.core_engine.predictors.doubles import delay_predictor
from tests.featurestore.conftest import own_server, socket_dir
from tests.featurestore.valkey import Valkey

__all__ = ("own_server", "socket_dir")  # fixtures
NUM_ROWS = 40


@dataclass
class Gate:
    """Lets `left` rows be scored and then holds the engine's scorer up, until it is opened."""

    left: int = NUM_ROWS * 2
    is_shut: threading.Event = field(default_factory=threading.Event)
    is_open: threading.Event = field(default_factory=threading.Event)

    def pass_through(self, features: np.ndarray) -> np.ndarray:
        self.left -= len(features)
        if self.left < 0 and not self.is_open.is_set():
            self.is_shut.set()
            self.is_open.wait(60)
        return np.asarray(features.sum(axis=1))


@dataclass
class Platform:
    folder: Path
    server: Valkey
    served: Served
    gate: Gate
    environ: dict[str, str]

    def write_input(self, num: int = NUM_ROWS, *, extra: bytes = b"") -> Path:
        rows = [{"origin": "JFK", "dest": f"D{at}", "departure": "2026-11-05T17:30:00Z"} for at in range(num)]
        path = self.folder / "rows.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows) + extra)
        return path

    def command(self, *options: str) -> list[str]:
        rows, out = str(self.folder / "rows.jsonl"), str(self.folder / "out")
        given = ("--predictor", "delay", "--input", rows, "--output", out, "--job", "night")
        return [sys.executable, "-m", "headrace", "batch", "run", *given, *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*options), env=self.environ, stderr=subprocess.PIPE, text=True)

    def run(self, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
        command, environ = self.command(*options), self.environ | settings
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)

    def listed(self) -> list[list[str]]:
        command = [sys.executable, "-m", "headrace", "batch", "list"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def output(self) -> tuple[bytes, bytes]:
        return (self.folder / "out/results.parquet").read_bytes(), (self.folder / "out/errors.jsonl").read_bytes()

    def generation_of(self, entity: str) -> str | None:
        async def look_up() -> str | None:
            client = connect(RedisSettings(url=self.server.url))
            stored = await OnlinePredictionReader(client).lookup("delay:1", entity, Deadline.never())
            await client.aclose()
            return stored.generation if stored else None

        return asyncio.run(look_up())


def predictor(folder: Path) -> Predictor:
    """Scored by the sum of its columns: no feature is read."""
    whole = delay_predictor(folder)
    return delay_predictor(
        folder,
        model=TorchScorer(artifact=Artifact(path="held already", sha256="good")),
        entities=(),
        features=(),
        columns=(*whole.columns[:2], msgspec.structs.replace(whole.columns[1], name="again")),
        precomputed=Precomputed(key=("origin", "dest", "departure"), max_age_s=3600.0),
        ladder=(Rung.MODEL, Rung.PRECOMPUTED, Rung.STUDENT, Rung.PRIOR),
    )


@pytest.fixture
def platform(tmp_path: Path, own_server: Valkey) -> Iterator[Platform]:
    url, endpoint = f"sqlite:///{tmp_path / 'headrace.db'}", f"ipc://{own_server.url.removeprefix('unix://')}.e"
    upgrade(url)
    database = open_database(url)
    registry = Registry(database)
    registry.register(predictor(tmp_path))
    registry.set_alias("delay", "live", 1)
    database.dispose()
    own = {
        "HEADRACE_STATE_DIR": str(tmp_path),
        "HEADRACE_REDIS__URL": own_server.url,
        "HEADRACE_ENGINE__ENDPOINT": endpoint,
        "HEADRACE_BATCH__CONCURRENCY": "4",
        "HEADRACE_BATCH__ENGINE_WAIT_S": "30",
    }
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")} | own
    context, gate = zmq.Context[zmq.Socket[bytes]](), Gate()
    with serve(context, endpoint, heartbeat_s=0.05) as served:
        served.scorer.score = gate.pass_through  # type: ignore[method-assign]
        served.server.scorers.put("delay:1", served.scorer)
        try:
            yield Platform(tmp_path, own_server, served, gate, environ)
        finally:
            gate.is_open.set()
    context.destroy(linger=0)


def logged(text: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def test_a_job_runs_publishes_and_reports(platform: Platform) -> None:
    platform.write_input(extra=b'{"origin": 7}\nno json\n')
    report_file = platform.folder / "report.json"
    done = platform.run("--publish", "--json", str(report_file))
    assert done.returncode == 0, done.stderr
    said = f"job night: {NUM_ROWS} predictions and 2 bad rows ({NUM_ROWS + 2} rows done now, 0 found done); p50 "
    assert said in done.stdout
    assert "at concurrency 4, batch sizes" in done.stdout
    report = json.loads(report_file.read_bytes())
    assert (report["n"], report["bad"], report["entities"], report["concurrency"]) == (NUM_ROWS, 2, NUM_ROWS, 4)
    assert report["rungs"] == {"model": NUM_ROWS}
    assert sum(report["batch_sizes"].values()) == NUM_ROWS
    assert platform.generation_of("JFK-D7-20261105T173000Z") == report["generation"]
    assert platform.listed() == [["night", "delay:1", "done", str(NUM_ROWS + 2), report["generation"]]]
    table = pyarrow.parquet.read_table(platform.folder / "out/results.parquet")
    assert table["value"].to_pylist() == [35.0] * NUM_ROWS
    reasons = [json.loads(line)["reason"] for line in platform.output()[1].splitlines()]
    assert "'origin' = 7 has the wrong kind" in reasons[0]
    (spool,) = (platform.folder / "spool").glob("batch-*")
    facts = [fact for fact in read_spool(spool).facts if isinstance(fact, CallerFact)]
    assert {fact.path for fact in facts} == {"batch"}
    assert {fact.delivery_key for fact in facts} == {f"night:{at}" for at in range(NUM_ROWS)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_killed_goes_on_where_it_died_and_ends_with_the_same_bytes(
    platform: Platform, number: signal.Signals
) -> None:
    platform.write_input()
    assert platform.run().returncode == 0
    whole = platform.output()
    (platform.folder / "out/results.parquet").unlink()
    (platform.folder / "headrace.db").rename(platform.folder / "first.db")
    url = f"sqlite:///{platform.folder / 'headrace.db'}"
    upgrade(url)
    database = open_database(url)
    registry = Registry(database)
    registry.register(predictor(platform.folder))
    registry.set_alias("delay", "live", 1)
    database.dispose()

    platform.gate.left = 12
    process = platform.start("--publish")
    assert platform.gate.is_shut.wait(60)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number is signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert said.splitlines()[-1].startswith("headrace: interrupted; what is finished is kept: run the same command")
    (job,) = platform.listed()
    assert 0 < int(job[3]) <= 12
    assert job[2] == ("running" if number is signal.SIGKILL else "interrupted")
    assert not (platform.folder / "out/results.parquet").exists()
    assert platform.generation_of("JFK-D7-20261105T173000Z") is None

    platform.gate.is_open.set()
    done = platform.run("--publish")
    assert done.returncode == 0, done.stderr
    (begins,) = logged(done.stderr, "batch_job_begins")
    assert begins["units_done"] == int(job[3])
    assert f"({NUM_ROWS - int(job[3])} rows done now, {job[3]} found done)" in done.stdout
    assert platform.output() == whole
    assert platform.generation_of("JFK-D7-20261105T173000Z") is not None


def sentence_of(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one sentence of a command that failed."""
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("headrace: ")
    return line


RESUMABLE = 75


def test_a_store_that_is_away_at_the_start_or_in_the_middle_is_one_sentence(platform: Platform) -> None:
    platform.write_input()
    platform.server.kill()
    assert "online store: ConnectionError" in sentence_of(platform.run("--publish"), RESUMABLE)
    assert platform.listed() == []
    platform.server.start()

    platform.gate.left = 12
    process = platform.start("--publish")
    assert platform.gate.is_shut.wait(60)
    platform.server.kill()
    platform.gate.is_open.set()
    _, said = process.communicate(timeout=60)
    assert process.returncode == RESUMABLE
    assert said.splitlines()[-1].startswith("headrace: online store: ")
    assert platform.listed() == [["night", "delay:1", "done", str(NUM_ROWS), "-"]]

    platform.server.start()
    done = platform.run("--publish")
    assert done.returncode == 0, done.stderr
    assert f"(0 rows done now, {NUM_ROWS} found done)" in done.stdout
    assert platform.generation_of("JFK-D7-20261105T173000Z") is not None


def test_without_an_engine_it_says_so_and_keeps_the_job(platform: Platform) -> None:
    platform.write_input()
    nobody = {"HEADRACE_ENGINE__ENDPOINT": f"ipc://{platform.folder}/nobody", "HEADRACE_BATCH__ENGINE_WAIT_S": "0.2"}
    said = sentence_of(platform.run(**nobody), RESUMABLE)
    assert "no engine at ipc://" in said
    assert "run the same command again" in said
    assert platform.run().returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--input", "absent.jsonl"), "input file absent.jsonl cannot be read: No such file or directory"),
        (("--input", "rows.csv"), "input file rows.csv cannot be read: No such file"),
        (("--predictor", "nobody"), "predictor 'nobody' is unknown; known: delay"),
        (("--alias", "shadow"), "alias 'shadow' of predictor 'delay' is unknown; known: live"),
        (("--job", "a b"), "job id 'a b': expected 1 to 100 letters"),
    ],
)
def test_what_is_wrong_as_asked_is_one_sentence(platform: Platform, options: tuple[str, ...], said: str) -> None:
    platform.write_input()
    assert said in sentence_of(platform.run(*options), 1)
    assert platform.listed() == []


def test_a_corrupt_input_is_one_sentence_and_publishes_nothing(platform: Platform) -> None:
    path = platform.folder / "corrupt.parquet"
    path.write_bytes(b"PAR1" + bytes(range(256)) + b"PAR1")
    assert "corrupt.parquet cannot be read" in sentence_of(platform.run("--publish", "--input", str(path)), 1)
    garbage = platform.folder / "garbage.jsonl"
    garbage.write_bytes(bytes(range(256)))
    said = sentence_of(platform.run("--publish", "--job", "other", "--input", str(garbage)), 1)
    assert "gives no result; the first of its 2 bad rows: the line is no JSON" in said
    assert platform.generation_of("JFK-D7-20261105T173000Z") is None


def test_an_id_of_another_input_is_refused(platform: Platform) -> None:
    platform.write_input()
    assert platform.run().returncode == 0
    platform.write_input(3)
    assert "job night was begun with another input" in sentence_of(platform.run(), 1)


def test_a_job_file_does_what_the_options_do(platform: Platform) -> None:
    platform.write_input(3)
    job_file = platform.folder / "night.toml"
    job_file.write_text('predictor = "delay"\ninput = "rows.jsonl"\noutput = "out"\npublish = true\n')
    command = [sys.executable, "-m", "headrace", "batch", "run", str(job_file), "--job", "tonight"]
    done = subprocess.run(command, env=platform.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "job tonight: 3 predictions" in done.stdout
    assert (platform.folder / "out/results.parquet").exists()


def test_neither_a_file_nor_options_is_one_sentence(platform: Platform) -> None:
    command = [sys.executable, "-m", "headrace", "batch", "run", "--predictor", "delay"]
    done = subprocess.run(command, env=platform.environ, capture_output=True, text=True, check=False)
    assert "name a job file, or give --predictor, --input and --output" in sentence_of(done, 1)

"""The stream worker with its real parts: tansu, Valkey, SQLite, a served engine; and as a command of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from sqlalchemy.orm import Session

from core_engine import contracts
from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import read_spool
from core_engine.errors import BrokerUnavailable, ConfigurationError, UnknownName
from core_engine.predictors.declaration import (
    Column,
    ColumnKind,
    EntityUse,
    FeatureUse,
    InputField,
    InputKind,
    Predictor,
    Student,
    TorchScorer,
)
from core_engine.predictors.registry import LIVE, Registry
from core_engine.predictors.tables import open_database
from core_engine.scoring.artifact import write_artifact
from core_engine.settings import EngineSettings, RedisSettings, Settings
from featurestore.definitions import FeatureView
from featurestore.registry import register_view
from headrace import stream
from headrace.migrations import upgrade
from headrace.runtime import free_port
from headrace.stack import as_environment
from headrace.stream import StreamOptions, run_stream
from streaming.events import DeadLetter, PredictionMessage
from streaming.report import StreamReport
from tests.core_engine.llm.running import serve
from tests.core_engine.predictors.doubles import STUDENT_SCORE, notice_predictor, student_model
from tests.featurestore.conftest import redis_url, socket_dir
from tests.featurestore.windows.oracle import window_view
from tests.streaming.broker import Topics, unique
from tests.streaming.conftest import topics
from tests.streaming.working import event

__all__ = ["redis_url", "socket_dir", "topics"]

IDLE_S = 0.5


def sum_predictor(folder: Path, view: FeatureView) -> Predictor:
    """Scored by the engine's `SumScorer`: delay + 0 + 1 for JFK. A windowed feature is read, and not used."""
    return Predictor(
        name="sum",
        version=1,
        owner="tests",
        model=TorchScorer(artifact=write_artifact(folder / "scorer.safetensors", b"not read here")),
        inputs=(
            InputField(name="origin", kind=InputKind.STRING, max_length=4),
            InputField(name="delay", kind=InputKind.FLOAT),
        ),
        entities=(EntityUse(entity="airport", fields=("origin",)),),
        features=(FeatureUse(ref=f"{view.name}.flights"),),
        columns=(
            Column(name="delay", kind=ColumnKind.NUMERIC, source="delay"),
            Column(name="origin", kind=ColumnKind.CATEGORY, source="origin", values=("JFK",)),
            Column(name="home", kind=ColumnKind.CATEGORY, source="origin", values=("LGA", "JFK")),
        ),
        student=Student(artifact=write_artifact(folder / "student.onnx", student_model(3))),
        ladder=(contracts.Rung.MODEL, contracts.Rung.STUDENT),
        freshness_s=60.0,
        budget_ms=10_000.0,
    )


@dataclass
class Site:
    """A place where a worker can run, with its topics, its predictor `sum` and its window."""

    settings: Settings
    options: StreamOptions
    topics: Topics
    view: FeatureView

    async def run(self, stop: asyncio.Event | None = None, **changes: Any) -> StreamReport:
        return await run_stream(self.settings, replace(self.options, **changes), stop)

    async def run_until_written(self, count: int, *, letters: int = 0) -> StreamReport:
        """Run until so many predictions and dead letters can be read; how long the broker takes does not matter."""
        stop = asyncio.Event()
        running = asyncio.create_task(self.run(stop))
        await asyncio.to_thread(self.predictions, count)
        await asyncio.to_thread(self.topics.read, self.options.letters, letters)
        stop.set()
        return await running

    def produce(self, *values: bytes) -> None:
        self.topics.produce(self.options.topic, [(b"k%d" % (i % 5), value) for i, value in enumerate(values)])

    def predictions(self, count: int) -> list[PredictionMessage]:
        seen = self.topics.read(self.options.output_topic, count)
        return [msgspec.json.decode(each.value or b"", type=PredictionMessage) for each in seen]

    def facts(self) -> list[CallerFact]:
        found = [fact for path in self.settings.spool_dir.glob("stream-*") for fact in read_spool(path).facts]
        return [fact for fact in found if isinstance(fact, CallerFact)]


@pytest.fixture
def site(tmp_path: Path, socket_dir: Path, redis_url: str, topics: Topics) -> Site:
    settings = Settings(
        state_dir=tmp_path / "state",
        redis=RedisSettings(url=redis_url),
        kafka=topics.settings,
        engine=EngineSettings(endpoint=f"ipc://{socket_dir}/engine.sock"),
    )
    source, output = topics.create("events", 2), topics.create("out", 2)
    view = window_view()
    assert view.window is not None
    view = msgspec.structs.replace(view, window=msgspec.structs.replace(view.window, topic=source))
    settings.state_dir.mkdir()
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    with Session(database) as session, session.begin():
        register_view(session, view)
    for predictor in (sum_predictor(tmp_path, view), notice_predictor()):
        Registry(database).register(predictor)
        Registry(database).set_alias(predictor.name, LIVE, predictor.version)
    database.dispose()
    letters = topics.create("letters")
    options = StreamOptions("sum", source, output, letters, unique("group"))
    return Site(settings, options, topics, view)


@contextmanager
def engine_at(settings: Settings) -> Iterator[None]:
    context: zmq.Context[Any] = zmq.Context()
    assert settings.engine.endpoint is not None
    with serve(context, settings.engine.endpoint):
        yield
    context.destroy(linger=0)


def departures(count: int) -> list[bytes]:
    return [event(number, seconds=number % 9 + 1) for number in range(count)]


async def test_every_event_is_scored_by_the_engine_once_and_the_bad_one_is_put_aside(site: Site) -> None:
    site.produce(*departures(30), b"not json", *departures(10))
    with engine_at(site.settings):
        report = await site.run_until_written(40, letters=1)
        again = await site.run(stop_after_idle_s=IDLE_S)
    assert (report.n, report.rungs, report.dead_letters) == (40, {"model": 40}, {"malformed": 1})
    assert report.windows == {"applied": 40}
    assert sum(report.batch_sizes.values()) == 40
    assert again.n == 0, "all was committed"
    messages = site.predictions(40)
    assert all(message.value == float(message.event_id[1:]) + 1 for message in messages)
    assert len({(m.source.partition, m.source.offset) for m in messages}) == 40
    [letter] = site.topics.read(site.options.letters, 1)
    held = msgspec.json.decode(letter.value or b"", type=DeadLetter)
    assert held.value == b"not json"
    assert letter.key == f"{held.source.topic}/{held.source.partition}/{held.source.offset}".encode()
    facts = site.facts()
    assert len(facts) == 40
    assert {(fact.path, fact.tenant, fact.rung) for fact in facts} == {("stream", "tests", "model")}
    assert len({fact.delivery_key for fact in facts}) == 40
    assert {fact.feature.reads for fact in facts} == {2}


async def test_without_an_engine_the_student_answers_and_nothing_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ENGINE_S", 0.1)
    site.produce(*departures(10))
    report = await site.run_until_written(10)
    assert (report.n, report.rungs, report.reasons) == (10, {"student": 10}, {"engine_unavailable": 10})
    assert {message.value for message in site.predictions(10)} == {STUDENT_SCORE}


async def test_an_engine_that_is_lost_in_the_middle_is_replaced_by_the_student(site: Site) -> None:
    stop = asyncio.Event()
    with engine_at(site.settings):
        running = asyncio.create_task(site.run(stop))
        site.produce(*departures(5))
        assert {m.rung for m in await asyncio.to_thread(site.predictions, 5)} == {"model"}
    site.produce(*departures(5))
    rungs = [m.rung for m in await asyncio.to_thread(site.predictions, 10)]
    stop.set()
    assert sorted(rungs) == ["model"] * 5 + ["student"] * 5
    assert (await running).n == 10


async def test_what_cannot_work_is_said_before_anything_is_read(site: Site) -> None:
    with pytest.raises(UnknownName, match="predictor 'nobody' is unknown; known: notice, sum"):
        await site.run(predictor="nobody")
    with pytest.raises(ConfigurationError, match="predictor notice generates text"):
        await site.run(predictor="notice")
    for name in ("topic", "output_topic", "dead_letter_topic"):
        with pytest.raises(ConfigurationError, match=r"topic 'nowhere' does not exist at .*create-topic nowhere"):
            await site.run(None, **{name: "nowhere"})
    kafka = site.settings.kafka.model_copy(
        update={"bootstrap_servers": f"127.0.0.1:{free_port('127.0.0.1')}", "connect_timeout_s": 0.2}
    )
    with pytest.raises(BrokerUnavailable, match="no Kafka broker answers"):
        await run_stream(site.settings.model_copy(update={"kafka": kafka}), site.options)


def test_the_topics_of_a_worker_follow_from_its_options() -> None:
    options = StreamOptions("p", "events", "out")
    assert options.topics == ("events", "out", "events.dead-letters")


def command(site: Site, *arguments: str) -> subprocess.Popen[str]:
    environ = as_environment(site.settings)
    argv = [sys.executable, "-m", "headrace", "stream", *arguments]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_works_until_it_is_told_to_stop(site: Site) -> None:
    """SIGTERM in the middle of waiting: it leaves in order and prints what it did."""
    site.produce(*departures(6))
    options = site.options
    with (
        engine_at(site.settings),
        command(
            site,
            *("run", "--predictor", "sum", "--topic", options.topic, "--output-topic", options.output_topic),
            *("--dead-letter-topic", options.letters, "--group", str(options.group)),
        ) as worker,
    ):
        try:
            site.predictions(6)
            worker.send_signal(signal.SIGTERM)
            printed, logged = worker.communicate()
        finally:
            worker.kill()
    assert worker.returncode == 0, logged
    report = json.loads(printed)
    assert (report["n"], report["rungs"]) == (6, {"model": 6})
    assert [site.topics.committed(options.topic, str(options.group), (p,)) for p in (0, 1)].count([None]) <= 1
    assert all(json.loads(line) for line in logged.splitlines()), "logs are JSON"


def test_the_command_says_an_error_in_one_sentence(site: Site) -> None:
    name = f"nowhere-{uuid.uuid4().hex}"
    with command(site, "run", "--predictor", "sum", "--topic", name, "--output-topic", name) as worker:
        printed, logged = worker.communicate()
    assert (worker.returncode, printed) == (1, "")
    assert logged.splitlines()[-1].startswith(f"headrace: topic {name!r} does not exist at ")
    assert "Traceback" not in logged


def test_topics_are_created_by_a_command_and_twice_is_once(site: Site) -> None:
    name = unique("made")
    for _ in range(2):
        with command(site, "create-topic", name, "--partitions", "3") as made:
            printed, _ = made.communicate()
        assert (made.returncode, printed) == (0, f"{name}\n")
    site.topics.produce(name, [(b"k", b"v")], partition=2)
    assert os.environ.get("HEADRACE_STATE_DIR") is None

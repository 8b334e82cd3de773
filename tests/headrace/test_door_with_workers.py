"""A door of two workers as processes: one page of metrics for both, one killed and replaced, drained, and at fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core_engine.costs.facts import CallerFact
from core_engine.costs.spool import read_spool
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from headrace.migrations import upgrade
from headrace.runtime import free_port
from tests.core_engine.predictors.doubles import INPUTS, delay_predictor
from tests.headrace.test_door import environment, start

NUM_WORKERS, NUM_CONNECTIONS = 2, 64  # that one worker gets none of them happens once in 2 ** 63 runs
NUM_PAGES = 16  # that all come from one worker, so that less is proven, happens once in 2 ** 15 times
PREDICTIONS = (("route", "/v1/predict/{predictor}"), ("status", "200"))
PATIENCE_S = 240.0  # with a machine that has other work


@dataclass
class Workers:
    """The door's supervisor, and what it and its workers have logged so far."""

    process: subprocess.Popen[str]
    http: httpx.Client
    state_dir: Path
    lines: list[dict[str, object]] = field(default_factory=list)

    def until(self, event: str, count: int = 1) -> list[dict[str, object]]:
        """Read the log until so many such lines have come."""
        assert self.process.stderr is not None
        while len(found := [line for line in self.lines if line["event"] == event]) < count:
            self.lines.append(json.loads(self.process.stderr.readline()))
        return found

    def predict(self, count: int) -> None:
        for _ in range(count):
            assert self.http.post("/v1/predict/delay", json={"inputs": INPUTS}).status_code == 200

    def until_shown(self, predictions: int) -> None:
        """Ask until every worker shows so many predictions and a quiet door, as many connections in a row tell. A
        worker counts a request right after it was answered, so the first pages may be too early."""
        expected = {
            ("headrace_http_requests_total", PREDICTIONS): predictions,
            ("headrace_http_requests_in_flight", ()): 1,  # the page itself
            ("headrace_predict_limit", ()): NUM_WORKERS * 24,
            ("headrace_engine_up", ()): 0,  # one engine, one figure
        }
        in_a_row = 0
        while in_a_row < NUM_PAGES:
            shown = samples(self.http.get("/metrics").text)
            in_a_row = in_a_row + 1 if expected.items() <= shown.items() else 0

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and read what is logged until nobody has the pipe any more."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        self.lines += [json.loads(line) for line in rest.splitlines()]

    def predictions(self, pid: int) -> int:
        """How many the worker has written down, in a spool of its own."""
        (path,) = (self.state_dir / "spool").glob(f"door-{pid}-*")
        return sum(isinstance(fact, CallerFact) for fact in read_spool(path).facts)


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels, each of them once."""
    found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    by_labels = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}
    assert len(by_labels) == len(found), "a series that is there twice"
    return by_labels


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path, free_port("127.0.0.1")) | {"HEADRACE_HTTP__WORKERS": str(NUM_WORKERS)}


@pytest.fixture
def door(environ: dict[str, str], tmp_path: Path) -> Iterator[Workers]:
    """Without engine and without Redis, one predictor registered; its student answers."""
    url = f"sqlite:///{tmp_path / 'headrace.db'}"
    upgrade(url)
    database = open_database(url)
    registry = Registry(database)
    registry.register(delay_predictor(tmp_path))
    registry.set_alias("delay", "live", 1)
    database.dispose()
    process = start(environ)
    base_url = f"http://127.0.0.1:{environ['HEADRACE_HTTP__PORT']}"
    one_by_one = httpx.Limits(max_keepalive_connections=0)  # every request on a connection of its own
    with httpx.Client(base_url=base_url, limits=one_by_one, timeout=PATIENCE_S) as http:
        try:
            door = Workers(process, http, tmp_path)
            door.until("worker_serving", NUM_WORKERS)
            yield door
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_every_page_shows_the_whole_door_over_the_death_of_a_worker_and_all_end_in_order(door: Workers) -> None:
    door.predict(NUM_CONNECTIONS)
    door.until_shown(NUM_CONNECTIONS)

    killed = int(str(door.until("worker_serving")[0]["pid"]))
    os.kill(killed, signal.SIGKILL)
    (lost,) = door.until("worker_lost")
    assert (lost["pid"], lost["reason"]) == (killed, "signal SIGKILL")
    serving = [int(str(line["pid"])) for line in door.until("worker_serving", NUM_WORKERS + 1)][1:]
    door.until_shown(NUM_CONNECTIONS)
    door.predict(NUM_CONNECTIONS)
    door.until_shown(2 * NUM_CONNECTIONS)

    door.end()
    assert door.process.returncode == 0
    assert len([line for line in door.lines if line["event"] == "door_stopped"]) == NUM_WORKERS
    assert all(door.predictions(pid) for pid in serving)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_is_left_however_the_door_ends(door: Workers, how: signal.Signals) -> None:
    door.end(how)  # returns when no process has the pipe any more
    assert door.process.returncode == (0 if how is signal.SIGINT else -how)


def at_fault(environ: dict[str, str], **settings: str) -> list[str]:
    """What a door that cannot work says, but for its log."""
    process = start(environ | settings)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    return [line for line in said.splitlines() if not line.startswith("{")]


def test_what_can_never_work_is_one_sentence_and_the_end_of_all_workers(environ: dict[str, str]) -> None:
    (sentence,) = at_fault(environ, HEADRACE_ENGINE__MODEL_PATH="/nowhere.gguf")
    assert sentence.startswith("headrace: ")
    assert "/nowhere.gguf" in sentence


def test_a_port_that_another_door_s_workers_have_is_in_use(door: Workers, environ: dict[str, str]) -> None:
    port = environ["HEADRACE_HTTP__PORT"]
    assert at_fault(environ) == [
        f"headrace: port {port} on 127.0.0.1 is in use; set HEADRACE_HTTP__PORT to another port"
    ]

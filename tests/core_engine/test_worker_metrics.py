"""Several processes, one page: counts are added up, gauges become one figure by their mode, the dead are remembered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core_engine.metrics import Metrics
from core_engine.worker_metrics import VARIABLE, WorkersCollector, empty_folder, worker_died

WORKER = """
import sys
from pathlib import Path
from core_engine.contracts import Pool
from core_engine.metrics import Metrics

metrics, count = Metrics(Path(sys.argv[1])), int(sys.argv[2])
for _ in range(count):
    metrics.http_requests.labels("/v1/models", "200").inc()
    metrics.prediction_latency.labels("delay", "1", "model").observe(0.004)
    metrics.refused(Pool.BULK)
metrics.http_in_flight.set(count)
metrics.predict_limit.set(10 * count)
metrics.predict_places.labels("held").set(count)
metrics.breaker_state.labels("engine").set(count)
"""
PAGE = """
import sys
from pathlib import Path
from core_engine.metrics import Metrics

sys.stdout.buffer.write(Metrics(Path(sys.argv[1])).render_workers())
"""
REQUESTS = ("headrace_http_requests_total", ("/v1/models", "200"))
Values = Mapping[tuple[str, tuple[str, ...]], float]


def run(code: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """A process of its own, as prometheus_client wants it: its id and what it wrote."""
    argv = [sys.executable, "-c", code, str(folder), *arguments]
    process = subprocess.Popen(argv, env={**os.environ, VARIABLE: str(folder)}, stdout=subprocess.PIPE, text=True)
    told, _ = process.communicate()
    assert process.returncode == 0
    return process.pid, told


def page(folder: Path) -> Values:
    """By series and label values, these in the order of the labels' names."""
    families = text_string_to_metric_families(run(PAGE, folder)[1])
    return {
        (s.name, tuple(value for _, value in sorted(s.labels.items()))): s.value
        for family in families
        for s in family.samples
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "metrics" / "door-8000"
    empty_folder(made)
    return made


def test_counts_are_added_up_and_gauges_by_what_they_mean(folder: Path) -> None:
    for count in (2, 3):
        run(WORKER, folder, str(count))
    (folder / "counter_99999999.db").touch()  # of a worker that is just starting
    shown = page(folder)
    assert shown[REQUESTS] == 5
    assert shown["headrace_admission_refused_total", ("bulk",)] == 5
    assert shown["headrace_admission_refused_total", ("interactive",)] == 0
    assert shown["headrace_prediction_latency_seconds_count", ("delay", "model", "1")] == 5
    assert shown["headrace_http_requests_in_flight", ()] == 5
    assert shown["headrace_predict_limit", ()] == 50
    assert shown["headrace_predict_places", ("held",)] == 5
    assert shown["headrace_breaker_state", ("engine",)] == 3, "the worst of them"


def test_what_a_dead_worker_has_done_counts_and_what_it_had_in_hand_does_not(folder: Path) -> None:
    dead, _ = run(WORKER, folder, "3")
    run(WORKER, folder, "2")
    worker_died(folder, dead)
    shown = page(folder)
    assert shown[REQUESTS] == 5
    assert shown["headrace_http_requests_in_flight", ()] == 2
    assert shown["headrace_predict_limit", ()] == 20
    assert shown["headrace_breaker_state", ("engine",)] == 2


def test_no_series_has_a_label_for_the_process(folder: Path) -> None:
    run(WORKER, folder, "1")
    assert "pid=" not in run(PAGE, folder)[1]


def test_a_door_that_starts_begins_to_count_anew(folder: Path) -> None:
    run(WORKER, folder, "1")
    empty_folder(folder)
    assert REQUESTS not in page(folder)


def test_a_process_that_is_alone_shows_its_own(tmp_path: Path) -> None:
    metrics = Metrics()
    assert metrics.page is metrics.registry
    assert metrics.render_workers() == b""
    metrics.http_requests.labels("/v1/models", "200").inc()
    assert b'headrace_http_requests_total{route="/v1/models",status="200"} 1.0' in metrics.render()


def test_values_that_would_be_in_no_file_are_a_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="in no file"):
        WorkersCollector(tmp_path)

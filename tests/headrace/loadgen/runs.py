"""Finished runs with records made up, and no server."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.loadgen.connections import Address, ConnectionPool
from headrace.loadgen.load_run import LoadRun, Record
from headrace.loadgen.replies import Answer
from headrace.loadgen.report import Plan, Report, report
from headrace.loadgen.targets import Target, predict_target

URL = "http://door:8000"
START_S = 100.0
TARGET = predict_target("delay_risk", [b"{}"])


def answered(due_s: float, e2el_ms: float = 10.0, late_ms: float = 0.0, in_flight: int = 1, **said: object) -> Record:
    """A good answer, due `due_s` after the start."""
    due_s += START_S
    end_s = due_s + e2el_ms / 1e3
    answer = Answer(end_s, **said)  # type: ignore[arg-type]
    return Record(due_s, in_flight, due_s + late_ms / 1e3, end_s, answer)


def failed(due_s: float, kind: str, after_ms: float = 2.0) -> Record:
    due_s += START_S
    return Record(due_s, 1, due_s, due_s + after_ms / 1e3, failure=kind)


def finished(records: Sequence[Record]) -> LoadRun:
    run = LoadRun([b""], TARGET.reader, ConnectionPool(Address.of(URL), 512), 60.0, start_s=START_S)
    run.records += records
    run.details.update({record.failure: "in words" for record in records if record.failure})
    return run


def reported(records: Sequence[Record], target: Target = TARGET, **plan: object) -> Report:
    asked = {"arrivals": "poisson", "request_rate": 50.0} | plan
    return report(Plan(URL, **asked), target, finished(records))  # type: ignore[arg-type]

"""The nightly jobs: briefs per route by the language model, interrupted once and resumed, and the delay risks.

The first run of the briefs is a process of its own, because it is to be killed; everything else runs in this one.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from batch.door import JobReport
from batch.job import JobSpec
from core_engine.predictors.inputs import check_inputs, lookup_key
from core_engine.settings import Settings
from examples.flights.nightly import brief_rows, risk_rows, write_rows
from headrace.batch import run_batch
from headrace.demo.load import DemoFailed
from headrace.demo.summary import Batch
from headrace.flights import Flights
from headrace.stack import as_environment
from headrace.steps import Bar

BRIEF = "route_brief"
RISK = "delay_risk"
INTERRUPTED = 128 + signal.SIGTERM


async def nightly_jobs(settings: Settings, url: str, flights: Flights, bar: Bar) -> Batch:
    """Run both jobs and look one answer of each up through the door.

    Raises:
        DemoFailed: the interrupted job did not resume, lost a row, or was not published.
    """
    prepared, folder = flights.prepared, settings.state_dir / "nightly"
    briefs = await asyncio.to_thread(brief_rows, prepared, flights.now)
    risks = await asyncio.to_thread(risk_rows, prepared, flights.now)
    spec = job(BRIEF, write_rows(folder / "briefs.jsonl", briefs), folder)
    bar.advance(0, len(briefs), "until it is interrupted")
    kept = await run_until_interrupted(settings, spec)
    report = await run_batch(settings, spec, lambda done: bar.advance(kept + done, len(briefs), "resumed"))
    check(report, len(briefs), kept)
    risk = await run_batch(settings, job(RISK, write_rows(folder / "risks.jsonl", risks), folder))
    route = f"{briefs[0]['origin']}-{briefs[0]['dest']}"
    live = next(predictor for predictor in prepared.predictors if predictor.name == RISK)
    return Batch(
        n=report.n,
        concurrency=report.concurrency,
        p50_ms=report.p50_ms,
        p99_ms=report.p99_ms,
        batch_sizes=report.batch_sizes,
        resumed=report.resumed,
        generation=report.generation or "",
        route=route,
        brief=await looked_up(url, BRIEF, route),
        risks=risk.n,
        risk_entity=(entity := lookup_key(live, check_inputs(live, dict(risks[0])))),
        risk_value=await looked_up(url, RISK, entity),
    )


def job(predictor: str, rows: Path, folder: Path) -> JobSpec:
    return JobSpec(predictor=predictor, input=str(rows), output=str(folder / predictor), publish=True)


async def run_until_interrupted(settings: Settings, spec: JobSpec) -> int:
    """Run `spec` as a process and SIGTERM it at its first checkpoint; returns the units that it had kept by then."""
    named = ("--predictor", spec.predictor, "--input", spec.input, "--output", spec.output, "--publish")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", "batch", "run", *named),
        env=as_environment(settings),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    kept, said = 0, b""
    try:
        async for line in process.stderr:
            said = line
            if kept := computed(line):
                process.send_signal(signal.SIGTERM)
                break
        said = await process.stderr.read() or said
        status = await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if status != INTERRUPTED:
        raise DemoFailed(f"the interrupted job ended with status {status}, expected {INTERRUPTED}: {said.decode()}")
    return kept


def computed(line: bytes) -> int:
    """Units that a line of the job's log says are kept; 0 for any other line."""
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and record.get("event") == "batch_units":
            return int(record["computed"])
    return 0


def check(report: JobReport, num_rows: int, kept: int) -> None:
    """Raises `DemoFailed` naming the promise that was not kept."""
    if report.n != num_rows or report.bad:
        raise DemoFailed(f"{report.n} of {num_rows} briefs were written, {report.bad} rows were bad: {report.errors}")
    if report.resumed < kept:
        raise DemoFailed(f"the resumed job found {report.resumed} units done, the interrupted one had kept {kept}")
    if report.generation is None:
        raise DemoFailed("the briefs were not published")


async def looked_up(url: str, predictor: str, entity: str) -> Any:
    """What the door finds under `entity` in the published generation: a text or a number, as the predictor answers."""
    async with httpx.AsyncClient(base_url=url, timeout=5.0) as client:
        reply = await client.get(f"/v1/predictions/{predictor}/{entity}")
    if reply.status_code != httpx.codes.OK:
        raise DemoFailed(f"GET /v1/predictions/{predictor}/{entity} answered {reply.status_code}: {reply.text[:300]}")
    return reply.json()["value"]

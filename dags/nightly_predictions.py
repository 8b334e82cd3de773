"""Every night, every job file of a folder: `headrace batch run`, mapped over the files, in the product's interpreter.

A shard is a job file. Wiring only: what was done, and what is left, is in our own job store and not in Airflow, so that
a run may be cleared, late, repeated or beside another one. Exit status 75 and a signal mean: run the same again.
"""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

PARAMS = {"headrace": "headrace", "jobs": "/etc/headrace/jobs"}  # the product's command, and where job files are


def job_files(folder: str) -> list[str]:
    """Every job file of `folder`, in a fixed order."""
    return sorted(str(path) for path in Path(folder).glob("*.toml"))


def command(headrace: str, job_file: str, run_id: str) -> str:
    """One night's job: its id is made of file and run, so that a retry resumes and the next night begins anew."""
    job_id = re.sub(r"[^A-Za-z0-9._-]", ".", f"{Path(job_file).stem}-{run_id}")[:100]
    return shlex.join([headrace, "batch", "run", job_file, "--job", job_id])


@dag(schedule="0 9 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, params=PARAMS, tags=["headrace"])
def nightly_predictions() -> None:
    @task
    def list_jobs(params: dict[str, Any] | None = None) -> list[str]:
        return job_files((params or PARAMS)["jobs"])

    @task.bash(retries=5, retry_delay=timedelta(minutes=2), retry_exponential_backoff=True)
    def run_job(job_file: str, params: dict[str, Any] | None = None, run_id: str | None = None) -> str:
        return command((params or PARAMS)["headrace"], job_file, run_id or "by-hand")

    run_job.expand(job_file=list_jobs())


nightly_predictions()

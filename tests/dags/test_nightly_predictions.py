"""The DAG file without Airflow: against a stand-in of its SDK. Running it for real belongs to the batch issue."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch.job import JOB_ID
from tests.dags.fake_sdk import Sdk, install

MODULES = ("airflow", "airflow.sdk", "dags.nightly_predictions")


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sdk]:
    """The stand-in, with the DAG file parsed against it; both are gone afterwards."""
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    sdk = install()
    importlib.import_module("dags.nightly_predictions")
    yield sdk
    for name in MODULES:
        sys.modules.pop(name, None)


def test_it_imports_nothing_but_the_sdk_and_the_standard_library() -> None:
    code = (
        "import sys\nfrom tests.dags.fake_sdk import install\ninstall()\nbefore = set(sys.modules)\n"
        "import dags.nightly_predictions\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "sys.exit(str(new - set(sys.stdlib_module_names) - {'dags'} or '') or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_job_file_becomes_one_mapped_task_that_is_retried(sdk: Sdk) -> None:
    (dag,) = sdk.dags
    assert dag["catchup"] is False
    run_job = sdk.made["run_job"]
    assert run_job.mapped == {"job_file": ("output of", "list_jobs")}
    assert run_job.options["retries"] > 0


def test_the_job_files_of_the_folder_are_listed_in_order(sdk: Sdk, tmp_path: Path) -> None:
    for name in ("b.toml", "a.toml", "notes.txt"):
        (tmp_path / name).write_text("")
    listed = sdk.made["list_jobs"].function(params={"jobs": str(tmp_path)})
    assert listed == [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]


def test_a_retry_is_the_same_job_and_the_next_night_another(sdk: Sdk) -> None:
    run = sdk.made["run_job"].function
    params = {"headrace": "/opt/head race/bin/headrace"}
    tonight = run("/jobs/route_brief.toml", params=params, run_id="scheduled__2026-11-30T09:00:00+00:00")
    assert shlex.split(tonight) == [
        "/opt/head race/bin/headrace", "batch", "run", "/jobs/route_brief.toml",
        "--job", "route_brief-scheduled__2026-11-30T09.00.00.00.00",
    ]  # fmt: skip
    assert run("/jobs/route_brief.toml", params=params, run_id="scheduled__2026-11-30T09:00:00+00:00") == tonight
    assert run("/jobs/route_brief.toml", params=params, run_id="scheduled__2026-12-01T09:00:00+00:00") != tonight


def test_an_id_is_one_that_the_batch_door_takes(sdk: Sdk) -> None:
    command = importlib.import_module("dags.nightly_predictions").command

    for run_id in ("manual__" + "x" * 300, "übermorgen {{ ds }}"):
        job_id = shlex.split(command("headrace", "/jobs/nächtlich.toml", run_id))[-1]
        assert JOB_ID.fullmatch(job_id), job_id

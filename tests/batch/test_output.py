from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet

from batch.checkpoints import Checkpoint, JobStore
from batch.job import JobSpec, resolve
from batch.output import ERRORS, RESULTS, write_output
from core_engine.contracts import Reason, Rung
from core_engine.predictors.declaration import Artifact, TorchScorer
from tests.batch.conftest import MakeJob
from tests.batch.doubles import NAME, text_predictor


def test_results_are_in_the_order_of_the_input_and_errors_have_their_reasons(
    store: JobStore, make_job: MakeJob
) -> None:
    job = make_job(job="night")
    run = store.begin(job)
    store.record(run, [Checkpoint(3, fault="input 'x' is wrong"), Checkpoint(1, fault="no JSON ü")])
    store.record(run, [Checkpoint(2, "b", "B", Rung.MODEL, None, "length"), Checkpoint(0, "a", "A", Rung.MODEL)])
    write_output(store, run, job)
    table = pyarrow.parquet.read_table(job.output / RESULTS)
    assert table.to_pylist() == [
        {"row": 0, "entity": "a", "value": "A", "rung": "model", "reason": None, "finish_reason": None},
        {"row": 2, "entity": "b", "value": "B", "rung": "model", "reason": None, "finish_reason": "length"},
    ]
    assert table.schema.metadata == {
        b"job": b"night", b"predictor": f"{NAME}:1".encode(), b"fingerprint": job.fingerprint.encode(),
    }  # fmt: skip
    errors = [msgspec.json.decode(line) for line in (job.output / ERRORS).read_bytes().splitlines()]
    assert errors == [{"row": 1, "reason": "no JSON ü"}, {"row": 3, "reason": "input 'x' is wrong"}]


def test_scores_are_numbers_exactly(store: JobStore, tmp_path: Path, make_job: MakeJob) -> None:
    scorer = TorchScorer(artifact=Artifact(path="", sha256=""))
    spec = JobSpec(predictor="text", input=str(make_job().input), output=str(tmp_path / "scores"), job="scores")
    job = resolve(spec, text_predictor(model=scorer), {})
    run = store.begin(job)
    store.record(run, [Checkpoint(0, "a", 0.1 + 0.2, Rung.STUDENT, Reason.FEATURE_STATE)])
    write_output(store, run, job)
    (row,) = pyarrow.parquet.read_table(job.output / RESULTS).to_pylist()
    assert (row["value"], row["rung"], row["reason"]) == (0.1 + 0.2, "student", "feature_state")


def test_a_job_without_a_good_unit_has_an_empty_table(store: JobStore, make_job: MakeJob) -> None:
    job = make_job()
    write_output(store, store.begin(job), job)
    table = pyarrow.parquet.read_table(job.output / RESULTS)
    assert (table.num_rows, table.schema.field("value").type) == (0, pa.string())
    assert (job.output / ERRORS).read_bytes() == b""


def test_what_a_killed_run_left_half_written_is_removed(store: JobStore, make_job: MakeJob) -> None:
    job = make_job()
    old, new = store.begin(job), store.begin(job)
    job.output.mkdir()
    for fence in (old.fence, new.fence + 1):
        (job.output / f".{RESULTS}.{fence}").write_bytes(b"half")
    write_output(store, new, job)
    assert sorted(path.name for path in job.output.iterdir()) == [f".{RESULTS}.{new.fence + 1}", ERRORS, RESULTS]

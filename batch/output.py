"""What a job leaves on disk: `results.parquet` and `errors.jsonl`, made from its checkpoints in the order of the input.

The same checkpoints give the same bytes. Each file appears whole or not at all: it is written beside its place and
moved there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet

from batch.checkpoints import Checkpoint, JobStore, Run
from batch.job import Job
from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import LMGenerate

RESULTS, ERRORS = "results.parquet", "errors.jsonl"


def write_output(store: JobStore, run: Run, job: Job) -> None:
    """Both files of a job whose units are all checkpointed.

    Raises:
        ConfigurationError: the folder cannot be written to; nothing that was there is lost.
    """
    try:
        job.output.mkdir(parents=True, exist_ok=True)
        _put(job.output / RESULTS, run.fence, lambda path: _write_results(path, job, store.pages(job.id)))
        _put(job.output / ERRORS, run.fence, lambda path: _write_errors(path, store.pages(job.id, bad=True)))
    except OSError as error:
        raise ConfigurationError(f"output folder {job.output}: {error.strerror or error}") from None


def _put(path: Path, fence: int, write: Callable[[Path], None]) -> None:
    """`fence` keeps two runs of one job out of each other's way; what a killed run left half-written is removed."""
    for left in path.parent.glob(f".{path.name}.*"):
        if left.suffix[1:].isdigit() and int(left.suffix[1:]) < fence:
            left.unlink(missing_ok=True)
    partial = path.parent / f".{path.name}.{fence}"
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_results(path: Path, job: Job, pages: Iterator[list[Checkpoint]]) -> None:
    columns: dict[str, pa.DataType] = {
        "row": pa.int64(),
        "entity": pa.string(),
        "value": pa.string() if isinstance(job.predictor.model, LMGenerate) else pa.float64(),
        "rung": pa.string(),
        "reason": pa.string(),
        "finish_reason": pa.string(),
    }
    metadata: dict[str | bytes, str | bytes] = {
        "job": job.id,
        "predictor": job.predictor.id,
        "fingerprint": job.fingerprint,
    }
    schema = pa.schema(columns, metadata)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for page in pages:
            writer.write_table(pa.Table.from_pylist([_result(checkpoint) for checkpoint in page], schema=schema))


def _result(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "row": checkpoint.unit,
        "entity": checkpoint.entity,
        "value": checkpoint.value,
        "rung": checkpoint.rung and str(checkpoint.rung),
        "reason": checkpoint.reason and str(checkpoint.reason),
        "finish_reason": checkpoint.finish_reason,
    }


def _write_errors(path: Path, pages: Iterator[list[Checkpoint]]) -> None:
    with path.open("wb") as file:
        for page in pages:
            for checkpoint in page:
                file.write(msgspec.json.encode({"row": checkpoint.unit, "reason": checkpoint.fault}) + b"\n")

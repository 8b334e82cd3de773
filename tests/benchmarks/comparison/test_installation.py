from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.comparison.installation import Installation, PeerFailed, peers_folder, run
from benchmarks.comparison.variants import VARIANTS, chosen


def test_a_peer_does_not_see_our_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HEADRACE_ENGINE__DTYPE", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "PYTHONPATH", "LD_PRELOAD"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PATH", "/bin")
    environ = Installation("openvino", tmp_path).environ()
    assert environ["PATH"] == "/bin"
    assert not {"HEADRACE_ENGINE__DTYPE", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "PYTHONPATH", "LD_PRELOAD"} & set(
        environ
    )


def test_the_folder_of_the_peers_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_BENCH_PEERS", str(tmp_path))
    assert peers_folder() == tmp_path
    monkeypatch.delenv("HEADRACE_BENCH_PEERS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert peers_folder() == tmp_path / "cache" / "headrace" / "peers"


def test_nothing_is_installed_before_its_mark_is_there(tmp_path: Path) -> None:
    installation = Installation("vllm", tmp_path)
    (tmp_path / "vllm" / "venv").mkdir(parents=True)
    assert not installation.is_complete
    (tmp_path / "vllm" / "installed").touch()
    assert installation.is_complete


def test_a_command_that_fails_tells_its_last_lines() -> None:
    with pytest.raises(PeerFailed, match=r"ended with 3: .*no such package"):
        run(["sh", "-c", "echo no such package; exit 3"])


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="no llama-server"):
        Installation("llama", tmp_path).server_binary()


def test_variants_are_chosen_by_peer_or_name_within_a_class() -> None:
    assert [v.name for v in chosen(["vllm", "openvino-q8_0"], [8])] == ["vllm-w8a8", "openvino-q8_0"]
    assert [v.name for v in chosen(["openvino"], [4, 16])] == ["openvino-bf16", "openvino-q4_0"]
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)

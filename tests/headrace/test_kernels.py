"""`headrace kernels build` and `show`, on a machine that has a compiler and on one that has none."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from headrace.kernels import build_levels, lines
from kernels.cpu.isa import Level, best_level, levels_of, missing, this_cpu

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Sources that build in no time, instead of the kernels'."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "step.cpp").write_text('extern "C" int answer() { return 42; }\n')
    return sources


def state(told: list[str]) -> dict[str, str]:
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in told}


@needs_compiler
def test_what_is_built_ahead_is_shown_as_built(tmp_path: Path, small: Path) -> None:
    before = state(lines(tmp_path, sources=small))
    assert before["level"] == best_level(this_cpu())
    assert before["portable"] == "not built"
    (path,) = build_levels([Level.PORTABLE], tmp_path, sources=small)
    assert path.parent == tmp_path
    after = state(lines(tmp_path, sources=small))
    assert after["portable"] == "built"
    assert "c++" in after["compiler"]


@needs_compiler
def test_without_a_choice_every_level_of_the_architecture_is_built(tmp_path: Path, small: Path) -> None:
    paths = build_levels([], tmp_path, sources=small)
    assert [path.name.partition("-")[0] for path in paths] == levels_of(platform.machine())
    assert all(
        state(lines(tmp_path, sources=small))[level].startswith("built") for level in levels_of(platform.machine())
    )


@needs_compiler
def test_a_machine_without_a_compiler_shows_what_was_built_elsewhere(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_levels([Level.PORTABLE], tmp_path, sources=small)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    told = state(lines(tmp_path, sources=small))
    assert (told["compiler"], told["portable"]) == ("none", "built")


def test_without_a_compiler_a_build_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(ConfigurationError, match=r"no C\+\+ compiler was found \(tried /no/such/compiler\)"):
        build_levels([Level.PORTABLE], tmp_path)


def test_a_compiler_that_is_no_command_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ 'unfinished")
    with pytest.raises(ConfigurationError, match=r"CXX = .* is no command"):
        lines(tmp_path)


def test_a_level_that_this_cpu_cannot_run_says_what_is_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kernels.this_cpu", frozenset)
    told = state(lines(tmp_path))
    assert told["level"] == Level.PORTABLE
    for level in levels_of(platform.machine())[:-1]:
        assert told[level].endswith("this CPU lacks " + ", ".join(missing(level, frozenset())))

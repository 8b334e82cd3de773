from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from headrace.loadgen.load_run import LoadRun
from headrace.loadgen.plot import plot
from tests.headrace.loadgen.runs import START_S, answered, failed, finished


@pytest.fixture
def run() -> LoadRun:
    streamed = answered(0.5, 30.0, first_s=START_S + 0.51, completion_tokens=3)
    return finished([answered(0.0, rung="model"), answered(0.2, rung="prior"), streamed, failed(0.3, "timeout")])


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_written_in_the_format_of_its_name(
    run: LoadRun, suffix: str, begin: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"run.{suffix}"
    plot(run, "a run", path)
    assert path.read_bytes().startswith(begin)


def test_a_run_that_never_got_an_answer_can_be_drawn(tmp_path: Path) -> None:
    plot(finished([failed(0.0, "connect")]), "nobody there", tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 0


def test_without_matplotlib_the_extra_is_named(run: LoadRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"install the extra, headrace\[plot\]"):
        plot(run, "a run", tmp_path / "run.png")


def test_a_file_that_cannot_be_written_is_named(run: LoadRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"plot .*run.nonsense cannot be written"):
        plot(run, "a run", tmp_path / "run.nonsense")

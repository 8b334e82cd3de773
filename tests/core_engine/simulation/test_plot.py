from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core_engine.contracts import Pool
from core_engine.errors import ConfigurationError
from core_engine.simulation.plot import plot
from core_engine.simulation.recording import Recording
from core_engine.simulation.virtual_engine import VirtualEngine
from tests.core_engine.simulation.traces import device, job


@pytest.fixture
def recording() -> Recording:
    on = device()
    engine = VirtualEngine(on.scheduler(), on.step_time, keep_samples=True)
    return engine.run([job(0), job(1, arrival_s=1.0)], [job(n, pool=Pool.BULK) for n in range(9)])


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_written_in_the_format_of_its_name(
    recording: Recording, suffix: str, begin: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"run.{suffix}"
    plot(recording, "a run", path)
    assert path.read_bytes().startswith(begin)


def test_a_run_without_requests_can_be_drawn(tmp_path: Path) -> None:
    plot(Recording(), "nothing", tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0


def test_without_matplotlib_the_extra_is_named(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"install the extra, headrace\[plot\]"):
        plot(recording, "a run", tmp_path / "run.png")


@pytest.mark.parametrize("name", ["run.nonsense", "nowhere/run.png"])
def test_a_file_that_cannot_be_written_is_named(recording: Recording, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"plot .*{name} cannot be written"):
        plot(recording, "a run", tmp_path / name)

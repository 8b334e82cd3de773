from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from core_engine.errors import ConfigurationError
from core_engine.quality.limits import load_limits, verdicts
from core_engine.quality.needles import NeedleCase, NeedleReport
from core_engine.quality.plot import plot
from tests.core_engine.quality.models import findings

NEEDLES = NeedleReport(tuple(NeedleCase(256, d, -1.0, -2.0, is_recalled=True, is_kept=True) for d in (0.1, 0.9)))


def draw(path: Path, needles: NeedleReport | None = NEEDLES, **changed: torch.Tensor) -> None:
    found = findings(needles, **changed)
    plot(found, verdicts(found, load_limits("int8")), "a model", path)


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_written_in_the_format_of_its_name(suffix: str, begin: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"found.{suffix}"
    draw(path)
    assert path.read_bytes().startswith(begin)


def test_findings_without_needles_and_with_numbers_that_are_none_can_be_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "found.png", None, kl=torch.full((400,), torch.nan), nll=torch.full((400,), torch.nan))
    assert (tmp_path / "found.png").stat().st_size > 0


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"install the extra, headrace\[plot\]"):
        draw(tmp_path / "found.png")


@pytest.mark.parametrize("name", ["found.nonsense", "nowhere/found.png"])
def test_a_file_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"plot .*{name} cannot be written"):
        draw(tmp_path / name)

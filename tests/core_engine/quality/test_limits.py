from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from core_engine.errors import ConfigurationError
from core_engine.quality.limits import MEASURES, load_limits, verdicts
from core_engine.quality.needles import NeedleCase, NeedleReport
from tests.core_engine.quality.models import findings, scores

WEIGHTS = ("float32", "bfloat16", "int8", "int4")


def write(path: Path, **changed: object) -> Path:
    limits: dict[str, object] = dict.fromkeys(MEASURES, 1) | changed
    lines = [f"{name} = {value}" for name, value in limits.items() if value is not None]
    path.write_text("[int8]\n" + "\n".join(lines))
    return path


def recall(drop: float) -> NeedleReport:
    return NeedleReport((NeedleCase(256, 0.5, -1.0, -1.0 - drop, is_recalled=True, is_kept=drop < 1),))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_precision_has_a_limit_for_every_measure(weights: str) -> None:
    assert load_limits(weights).keys() == MEASURES.keys()


def test_the_file_has_no_other_precision() -> None:
    assert tuple(tomllib.loads((files("core_engine.quality") / "limits.toml").read_text())) == WEIGHTS


def test_fewer_bits_are_never_judged_more_strictly() -> None:
    for better, worse in pairwise(WEIGHTS[1:]):
        of_better, of_worse = load_limits(better), load_limits(worse)
        for name, measure in MEASURES.items():
            if name == "tail_ratio":  # against its own noise
                continue
            strict, loose = of_better[name], of_worse[name]
            assert loose <= strict if measure.is_minimum else loose >= strict, name


@pytest.mark.parametrize(
    ("name", "changed", "needles"),
    [
        ("mean_kl", {"kl": torch.full((400,), 0.05)}, None),
        ("worst_percent_kl", {"kl": scores().kl + torch.where(torch.arange(400) < 4, 2.0, 0.0)}, None),
        ("top1_agreement", {"is_flipped": torch.arange(400) % 10 == 0, "margin": torch.zeros(400)}, None),
        ("confident_flips", {"is_flipped": torch.arange(400) < 2, "margin": torch.full((400,), 3.0)}, None),
        ("nll_change", {"nll": scores().reference_nll - 0.05}, None),
        ("rarity_nll_change", {"nll": scores().reference_nll + 0.05}, None),
        ("needle_drop", {}, recall(3.0)),
        ("needles_kept", {}, recall(3.0)),
    ],
)
def test_each_measure_past_its_limit_is_named_with_value_and_limit(
    name: str, changed: dict[str, torch.Tensor], needles: NeedleReport | None
) -> None:
    before = {each.name for each in verdicts(findings(recall(0.1)), load_limits("int8")) if not each.holds}
    assert before == set()
    failed = {each.name: each for each in verdicts(findings(needles, **changed), load_limits("int8")) if not each.holds}
    assert name in failed
    verdict = failed[name]
    assert str(verdict).startswith(f"{name} is {verdict.value:.4g}, its limit at ")
    assert verdict.used is None or verdict.used > 1


def test_a_number_that_is_none_is_past_every_limit() -> None:
    broken = findings(kl=torch.full((400,), math.nan), nll=torch.full((400,), math.nan))
    failed = {each.name for each in verdicts(broken, load_limits("int4")) if not each.holds}
    kinds = ("mean_kl", "worst_decile_kl", "worst_percent_kl", "tail_ratio", "worst_sequence_kl")
    assert failed >= {*kinds, "nll_change", "rarity_nll_change", "position_nll_change"}


def test_what_cannot_be_measured_is_said_and_not_failed() -> None:
    (drop,) = [each for each in verdicts(findings(), load_limits("int8")) if each.name == "needle_drop"]
    assert (drop.holds, drop.used) == (True, None)
    assert str(drop) == "needle_drop is not measured, its limit at most 1"


def test_limits_of_the_users_own(tmp_path: Path) -> None:
    limits = load_limits("int8", write(tmp_path / "mine.toml", mean_kl=0.25, needle_drop="inf"))
    assert (limits["mean_kl"], limits["needle_drop"]) == (0.25, math.inf)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mean_kl": None}, r"\[int8\] lacks mean_kl"),
        ({"mean_lk": 1}, r"\[int8\] mean_lk is unknown; known are mean_kl, "),
        ({"mean_kl": "'low'"}, r"mean_kl = 'low': expected a number"),
        ({"mean_kl": "true"}, r"mean_kl = True: expected a number"),
        ({"mean_kl": "nan"}, r"mean_kl = nan: expected a number"),
    ],
)
def test_a_section_that_is_not_sound_is_one_clear_error(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=rf"mine\.toml: .*{message}"):
        load_limits("int8", write(tmp_path / "mine.toml", **changed))


def test_a_file_without_the_precision_says_which_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"mine\.toml have no section \[int4\]; there are int8"):
        load_limits("int4", write(tmp_path / "mine.toml"))


@pytest.mark.parametrize("content", [None, "mean_kl = "])
def test_a_file_that_cannot_be_read_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"limits .*mine\.toml cannot be read"):
        load_limits("int8", path)

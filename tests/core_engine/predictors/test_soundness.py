"""A declaration whose parts do not fit is refused when it is registered, with every fault in one sentence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from core_engine.contracts import Rung
from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import (
    Column,
    ColumnKind,
    EntityUse,
    FeatureUse,
    InputField,
    InputKind,
    OnState,
    Prior,
)
from core_engine.predictors.soundness import check_declaration
from tests.core_engine.predictors.doubles import MEAN_DELAY, delay_predictor, notice_predictor

NUMERIC = ColumnKind.NUMERIC


def test_sound_declarations_pass(tmp_path: Path) -> None:
    check_declaration(delay_predictor(tmp_path))
    check_declaration(delay_predictor(tmp_path, threshold=0.5))
    check_declaration(notice_predictor())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": ""}, "its name must be non-empty"),
        ({"name": "a:b"}, "its name must be non-empty"),
        ({"version": 0}, "its version at least 1"),
        ({"inputs": (InputField(name="a", kind=InputKind.INT),) * 2}, "names of its inputs must be distinct"),
        ({"features": (FeatureUse(ref="a.b"),) * 2}, "names of its features must be distinct"),
        ({"ladder": (Rung.MODEL, Rung.MODEL)}, "names of its rungs must be distinct"),
        ({"ladder": ()}, "at least one rung"),
        ({"ladder": (Rung.MODEL, Rung.NONE)}, "never 'none'"),
        ({"student": None}, "no student is declared"),
        ({"prior": None}, "no prior is declared"),
        ({"entities": (EntityUse(entity="e", fields=("departure",)),)}, "required input of kind string or int"),
        ({"entities": (EntityUse(entity="e", fields=("seats",)),)}, "required input of kind string or int"),
        ({"entities": (EntityUse(entity="e", fields=("nowhere",)),)}, "required input of kind string or int"),
        ({"columns": ()}, "must declare columns"),
        ({"columns": (Column(name="c", kind=NUMERIC, source="nowhere"),)}, "neither an input nor a feature"),
        ({"columns": (Column(name="c", kind=ColumnKind.HOUR, source="origin"),)}, "needs a timestamp"),
        ({"columns": (Column(name="c", kind=ColumnKind.CATEGORY, source="origin"),)}, "lists no values"),
        ({"features": (FeatureUse(ref="nodot"),)}, "must be written view.feature"),
        ({"inputs": (InputField(name="a.b", kind=InputKind.INT),)}, "must not contain a dot"),
        ({"features": (FeatureUse(ref="weather@dest.wind"),)}, "'dest', which is no entity of the predictor"),
        ({"features": (FeatureUse(ref=MEAN_DELAY, on_null=OnState.DEFAULT),)}, "declares none"),
        ({"budget_ms": 0.0}, "budget_ms must be positive"),
        ({"reserve_ms": -1.0}, "not negative"),
        ({"threshold": math.nan}, "a threshold is a finite score"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        check_declaration(delay_predictor(tmp_path, **changes))


def test_a_prior_over_no_column_is_named(tmp_path: Path) -> None:
    sound = delay_predictor(tmp_path)
    assert sound.prior is not None
    prior = Prior(artifact=sound.prior.artifact, segment=("nowhere",), fallback=0.1)
    with pytest.raises(ConfigurationError, match="prior segment 'nowhere' is no column"):
        check_declaration(delay_predictor(tmp_path, prior=prior))


def test_a_predictor_that_writes_has_one_rung() -> None:
    with pytest.raises(ConfigurationError, match="the model rung only"):
        check_declaration(notice_predictor(ladder=(Rung.MODEL, Rung.PRECOMPUTED)))


def test_all_faults_are_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"delay:1: .*student.*; .*budget_ms"):
        check_declaration(delay_predictor(tmp_path, student=None, budget_ms=-1.0))

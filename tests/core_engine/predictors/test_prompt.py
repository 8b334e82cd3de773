"""The declared prompt with a row's inputs in it; what a declaration or a row may not do with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from core_engine.contracts import Scalar
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.predictors.declaration import InputField, InputKind, LMGenerate, Precomputed, Predictor
from core_engine.predictors.inputs import lookup_key
from core_engine.predictors.prompt import conversation
from core_engine.predictors.soundness import check_declaration
from tests.core_engine.predictors.doubles import notice_predictor

FIELDS = (
    InputField(name="route", kind=InputKind.STRING),
    InputField(name="share", kind=InputKind.FLOAT),
    InputField(name="note", kind=InputKind.STRING, required=False),
)


def brief(prompt: str, **changes: Any) -> Predictor:
    model = LMGenerate(system_prompt="Be brief.", prompt=prompt)
    return notice_predictor(**{"model": model, "inputs": FIELDS, **changes})


def test_inputs_are_written_as_the_prompt_formats_them() -> None:
    asked = conversation(brief("{route}: {share:.0%}"), {"route": "{JFK}", "share": 0.256})
    assert asked == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "{JFK}: 26%"},
    ]


@pytest.mark.parametrize("inputs", [{}, {"route": "A", "share": "much"}])
def test_inputs_that_do_not_fill_the_prompt_are_refused(inputs: dict[str, Scalar]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be filled in"):
        conversation(brief("{route}: {share:.0%}"), inputs)


def test_a_predictor_without_a_prompt_has_no_rows() -> None:
    with pytest.raises(InvalidRequest, match="has no prompt for rows"):
        conversation(notice_predictor(), {})


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ("{route", "no format string"),
        ("{nobody}", "'nobody', which is no required input"),
        ("{note}", "'note', which is no required input"),
        ("{route.__class__}", "which is no required input"),
        ("{}", "which is no required input"),
    ],
)
def test_a_prompt_that_does_not_fit_the_inputs_is_no_declaration(prompt: str, fault: str) -> None:
    check_declaration(brief("{route} {share}"))
    with pytest.raises(ConfigurationError, match=fault):
        check_declaration(brief(prompt))


EASTERN = timezone(timedelta(hours=-5))
KEYED = (
    InputField(name="carrier", kind=InputKind.STRING),
    InputField(name="number", kind=InputKind.INT),
    InputField(name="at", kind=InputKind.TIMESTAMP),
)


@pytest.mark.parametrize(
    ("inputs", "key"),
    [
        ({"carrier": "UA", "number": 7, "at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC)}, "UA-7-20260102T030400Z"),
        ({"carrier": "UA", "number": 7, "at": datetime(2026, 1, 1, 22, 4, tzinfo=EASTERN)}, "UA-7-20260102T030400Z"),
        (
            {"carrier": "U-A", "number": -1, "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)},
            "U%2DA-%2D1-20260102T030405.000006Z",
        ),
    ],
)
def test_the_key_of_a_stored_prediction(inputs: dict[str, Scalar], key: str) -> None:
    predictor = brief("", inputs=KEYED, precomputed=Precomputed(key=("carrier", "number", "at"), max_age_s=1))
    assert lookup_key(predictor, inputs) == key


def test_a_key_without_a_part_or_a_declaration_is_refused() -> None:
    predictor = brief("", inputs=KEYED, precomputed=Precomputed(key=("carrier",), max_age_s=1))
    with pytest.raises(InvalidRequest, match="it is part of the key of precomputed"):
        lookup_key(predictor, {"carrier": ""})
    with pytest.raises(InvalidRequest, match="declares no key"):
        lookup_key(notice_predictor(), {})

"""Every field of a generation, at its bounds and past them: the error names field, value and what would do."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import SamplingParams
from core_engine.errors import InvalidRequest
from core_engine.llm.validation import MAX_SCHEMA_BYTES, check_generate, check_sampling
from tests.core_engine.llm.tiny import request

VOCAB = 100
NAN, INF = math.nan, math.inf

GOOD: list[tuple[str, list[object]]] = [
    ("max_tokens", [1, 2**62]),
    ("temperature", [0, 0.0, 1e-300, 2.0]),
    ("top_k", [0, 1, 2**62]),
    ("top_p", [1e-9, 1.0]),
    ("min_p", [0.0, 1.0]),
    ("seed", [None, 0, -(2**63), 2**64 - 1]),
    ("stop", [(), ("x",) * 16, ("y" * 256,)]),
    ("stop_token_ids", [(), (0, VOCAB - 1), (1,) * 64]),
    ("min_tokens", [0, 256]),
    ("repetition_penalty", [0.01, 1.0, 10.0]),
    ("presence_penalty", [-2.0, 2.0]),
    ("frequency_penalty", [-2.0, 2.0]),
    ("logit_bias", [(), ((0, -100.0), (VOCAB - 1, 100.0))]),
    ("logprobs", [None, 0, 20]),
    ("prompt_logprobs", [None, 0, 20]),
    ("json_schema", [None, "{}", "x" * MAX_SCHEMA_BYTES]),
]
BAD: list[tuple[str, list[object]]] = [
    ("max_tokens", [0, -1]),
    ("temperature", [-0.01, 2.01, NAN, INF, -INF, 1e308]),
    ("top_k", [-1, -(2**62)]),
    ("top_p", [0.0, -1.0, 1.01, NAN, INF]),
    ("min_p", [-0.01, 1.01, NAN, INF]),
    ("seed", [-(2**63) - 1, 2**64]),
    ("stop", [("x",) * 17, ("y" * 257,), ("",), ("ok", "")]),
    ("stop_token_ids", [(1,) * 65, (-1,), (VOCAB,), (3, 2**62)]),
    ("min_tokens", [-1, 257, 2**62]),
    ("repetition_penalty", [0.0, 1e-300, -1.0, 10.1, NAN, INF]),
    ("presence_penalty", [-2.1, 2.1, NAN, -INF]),
    ("frequency_penalty", [-2.1, 2.1, NAN, INF]),
    ("logit_bias", [((VOCAB, 1.0),), ((-1, 1.0),), ((1, 1.0), (1, 2.0)), tuple((i, 0.0) for i in range(1025))]),
    ("logit_bias[3]", [((3, 100.1),), ((3, -100.1),), ((3, NAN),), ((3, INF),)]),
    ("logprobs", [-1, 21, 2**62]),
    ("prompt_logprobs", [-1, 21]),
    ("json_schema", ["x" * (MAX_SCHEMA_BYTES + 1), "é" * (MAX_SCHEMA_BYTES // 2 + 1)]),
]


def sampling(field: str, value: object) -> SamplingParams:
    return replace(SamplingParams(), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in GOOD for value in values])
def test_a_value_at_its_bound_is_taken(field: str, value: object) -> None:
    check_sampling(sampling(field, value), VOCAB)


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD for value in values])
def test_a_value_past_its_bound_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_sampling(sampling(field.partition("[")[0], value), VOCAB)
    error = refused.value
    assert error.field == field
    assert error.expected
    assert str(error).startswith(f"{field} is ")
    assert str(error).endswith(error.expected)
    assert len(str(error)) < 300  # however long the value was


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"ignore_eos": True}, "ignore_eos"), ({"min_tokens": 3}, "min_tokens")],
)
def test_what_would_outlast_complete_json_is_refused_beside_a_schema(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match="beside a json_schema") as refused:
        check_sampling(replace(SamplingParams(json_schema="{}"), **changes), VOCAB)  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_token_ids": (1, VOCAB)}, "prompt_token_ids"),
        ({"prompt_token_ids": (1, -1)}, "prompt_token_ids"),
        ({"template_tokens": -1, "predictor": "p"}, "template_tokens"),
        ({"template_tokens": 4, "predictor": "p"}, "template_tokens"),
        ({"template_tokens": 1, "predictor": ""}, "template_tokens"),
        ({"attempt_id": ""}, "attempt_id"),
        ({"attempt_id": "a/1"}, "attempt_id"),
        ({"attempt_id": "a" * 257}, "attempt_id"),
        ({"tenant": "a" * 257}, "tenant"),
        ({"predictor": "a" * 257}, "predictor"),
        ({"version": -1}, "version"),
        ({"sampling": SamplingParams(temperature=NAN)}, "temperature"),
    ],
)
def test_a_request_is_refused_by_the_field_that_is_wrong(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_generate(replace(request((1, 2, 3)), **changes), VOCAB)  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize("changes", [{}, {"template_tokens": 3, "predictor": "p", "version": 2}, {"tenant": ""}])
def test_a_good_request_is_taken(changes: dict[str, object]) -> None:
    check_generate(replace(request((0, VOCAB - 1, 3)), **changes), VOCAB)  # type: ignore[arg-type]


numbers = st.floats() | st.integers(-(2**63), 2**64 - 1)


@given(
    sampling=st.builds(
        SamplingParams,
        max_tokens=st.integers(),
        temperature=numbers,
        top_k=st.integers(),
        top_p=numbers,
        min_p=numbers,
        seed=st.none() | st.integers(),
        stop=st.lists(st.text(max_size=300), max_size=20).map(tuple),
        stop_token_ids=st.lists(st.integers(), max_size=70).map(tuple),
        min_tokens=st.integers(),
        repetition_penalty=numbers,
        presence_penalty=numbers,
        frequency_penalty=numbers,
        logit_bias=st.lists(st.tuples(st.integers(), numbers), max_size=5).map(tuple),
        logprobs=st.none() | st.integers(),
        prompt_logprobs=st.none() | st.integers(),
        json_schema=st.none() | st.text(),
    ),
    prompt=st.lists(st.integers(), max_size=5).map(tuple),
)
def test_no_value_of_the_right_type_raises_anything_else(sampling: SamplingParams, prompt: tuple[int, ...]) -> None:
    with contextlib.suppress(InvalidRequest):
        check_generate(replace(request(), sampling=sampling, prompt_token_ids=prompt), VOCAB)

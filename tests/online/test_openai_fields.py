"""No field is dropped in silence, on any of the OpenAI routes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from core_engine.errors import InvalidRequest
from online.openai_bodies import ChatBody, CompletionBody, EmbeddingBody
from online.openai_fields import CHAT, COMPLETION, EMBEDDING, WITHOUT_EFFECT, Neutral, read_fields
from online.problems import UnsupportedParameter

ROUTES: list[tuple[type[BaseModel], Neutral, dict[str, object]]] = [
    (ChatBody, CHAT, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
    (CompletionBody, COMPLETION, {"model": "m", "prompt": "x"}),
    (EmbeddingBody, EMBEDDING, {"model": "m", "input": "x"}),
]


@pytest.mark.parametrize(("wire", "neutral", "least"), ROUTES)
def test_a_field_with_the_value_it_has_when_left_out_is_taken(
    wire: type[BaseModel], neutral: Neutral, least: dict[str, object]
) -> None:
    bare = read_fields(wire, least, neutral)
    for name, values in neutral.items():
        for value in (None, *values):
            assert read_fields(wire, least | {name: value}, neutral) == bare
    assert read_fields(wire, least | dict.fromkeys(WITHOUT_EFFECT, "anything"), neutral) == bare


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [
        (0, "tools", [{"type": "function"}]),
        (0, "audio", {"voice": "x"}),
        (1, "echo", True),
        (1, "best_of", 2),
        (1, "suffix", "the end"),
        (1, "messages", []),
        (1, "response_format", {"type": "text"}),
        (2, "dimensions", 64),
        (2, "temperature", 0),
    ],
)
def test_a_field_that_is_not_supported_is_refused_by_name(route: int, field: str, value: object) -> None:
    wire, neutral, least = ROUTES[route]
    with pytest.raises(UnsupportedParameter, match="is not supported") as caught:
        read_fields(wire, least | {field: value}, neutral)
    assert (caught.value.field, caught.value.status) == (field, 400)


@given(st.sampled_from(ROUTES), st.text(max_size=8), st.integers() | st.text(max_size=3) | st.booleans())
def test_a_field_is_known_or_without_effect_or_refused(route: Any, name: str, value: object) -> None:
    wire, neutral, least = route
    if name in wire.model_fields or name in WITHOUT_EFFECT or name in neutral:
        return
    with pytest.raises(UnsupportedParameter) as caught:
        read_fields(wire, least | {name: value}, neutral)
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [(0, "store", 0), (0, "parallel_tool_calls", 1.0), (1, "best_of", True), (1, "echo", 0)],
)
def test_a_value_of_another_kind_is_not_the_one_that_changes_nothing(route: int, field: str, value: object) -> None:
    wire, neutral, least = ROUTES[route]
    with pytest.raises(UnsupportedParameter, match=field):
        read_fields(wire, least | {field: value}, neutral)


@pytest.mark.parametrize("field", ["n", "max_tokens", "seed", "top_k", "logprobs"])
def test_a_number_without_a_fraction_is_an_integer_as_in_json_schema(field: str) -> None:
    body = read_fields(CompletionBody, ROUTES[1][2] | {field: 3.0}, COMPLETION)
    assert repr(getattr(body, field)) == "3"
    for other in (3.5, True, "3"):
        with pytest.raises(InvalidRequest, match=field):
            read_fields(CompletionBody, ROUTES[1][2] | {field: other}, COMPLETION)

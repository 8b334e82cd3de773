from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest

from core_engine.contracts import (
    Deadline,
    GenerateRequest,
    Head,
    HeadKind,
    Path,
    Pool,
    SamplingParams,
    ScoreRequest,
)
from core_engine.errors import (
    DeadlineExceeded,
    EngineRefused,
    HeadraceError,
    InvalidRequest,
    PromptTooLong,
    UnknownName,
)
from core_engine.llm import messages as wire
from core_engine.llm.translation import (
    error_of,
    failed_message,
    generate_message,
    generate_request,
    score_message,
    score_request,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GENERATE = GenerateRequest(
    attempt_id="a",
    prompt_token_ids=(3, 1, 2),
    sampling=SamplingParams(max_tokens=9, temperature=0.5, stop=("x",), logit_bias=((4, -1.5),), json_schema="{}"),
    deadline=Deadline.never(),
    pool=Pool.BULK,
    tenant="t",
    predictor="p",
    version=7,
    path=Path.BATCH,
    template_tokens=2,
    head=Head(HeadKind.SCORE, labels=((1,), (2, 3))),
    traceparent=TRACEPARENT,
)
SCORE = ScoreRequest("s", "p:1", b"\0\0\0\0", 1, Deadline.never(), Pool.BULK, "t", Path.STREAM, TRACEPARENT)


def test_every_field_of_a_request_differs_from_its_default_here() -> None:
    for request in (GENERATE, SCORE):
        for field in fields(request):
            assert getattr(request, field.name) != field.default, f"{field.name} could be lost and nobody would see"


def test_a_generate_request_comes_out_as_it_went_in() -> None:
    packed = msgspec.msgpack.encode(generate_message(GENERATE))
    assert generate_request(msgspec.msgpack.decode(packed, type=wire.Generate)) == GENERATE


def test_a_score_request_comes_out_as_it_went_in() -> None:
    packed = msgspec.msgpack.encode(score_message(SCORE))
    assert score_request(msgspec.msgpack.decode(packed, type=wire.Score)) == SCORE


def test_a_deadline_is_the_same_instant_at_the_other_end() -> None:
    deadline = Deadline.after(30.0)
    back = generate_request(generate_message(replace(GENERATE, deadline=deadline)))
    assert back.deadline.at_s == pytest.approx(deadline.at_s, abs=1e-3)


@pytest.mark.parametrize("kind", [EngineRefused, DeadlineExceeded, UnknownName, PromptTooLong, HeadraceError])
def test_an_error_keeps_its_kind_and_its_words(kind: type[HeadraceError]) -> None:
    error = error_of(wire.Failed("a", kind.code, "the words"))
    assert type(error) is kind
    assert str(error) == "the words"


def test_a_refused_request_keeps_the_field_that_was_wrong() -> None:
    refused = InvalidRequest("the words", field="json_schema", value={"a": 1}, expected="another")
    packed = msgspec.msgpack.encode(failed_message("a", refused, "it failed: "))
    error = error_of(msgspec.msgpack.decode(packed, type=wire.Failed))
    assert isinstance(error, InvalidRequest)
    assert (str(error), error.field) == ("it failed: the words", "json_schema")
    assert failed_message("a", EngineRefused("full")).field is None


def test_a_code_that_is_not_known_is_still_an_error() -> None:
    assert type(error_of(wire.Failed("a", "code_of_tomorrow", "the words"))) is HeadraceError

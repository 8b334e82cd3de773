from __future__ import annotations

from dataclasses import replace

import pytest

from core_engine.contracts import FinishReason, Head, HeadKind, TokenLogprob, Usage
from core_engine.errors import DeadlineExceeded, EngineRefused, HeadraceError, InvalidRequest
from core_engine.llm import messages as wire
from core_engine.llm.delivery import tells_usage, wire_event
from core_engine.llm.engine import SequenceEvent
from core_engine.llm.sequence import Sequence
from core_engine.llm.translation import error_of
from tests.core_engine.llm.tiny import request

USAGE = Usage(prompt_tokens=3, cached_tokens=2, queue_s=0.25, prefill_s=0.5)


def sequence(num_completion: int = 1, head: Head | None = None) -> Sequence:
    made = Sequence(replace(request([5, 6, 7], max_tokens=9, attempt_id="a"), head=head), 0.0)
    made.token_ids += range(num_completion)
    return made


def test_usage_goes_with_the_first_token_and_with_the_end() -> None:
    assert tells_usage(SequenceEvent(sequence(1), (4,)))
    assert not tells_usage(SequenceEvent(sequence(2), (4,)))
    assert tells_usage(SequenceEvent(sequence(5), (4,), FinishReason.LENGTH))
    assert tells_usage(SequenceEvent(sequence(0), (), FinishReason.DEADLINE))


def test_tokens_go_with_everything_that_was_asked_of_them() -> None:
    logprob = TokenLogprob(4, -0.5, 1)
    event = SequenceEvent(sequence(), (4,), FinishReason.STOP, None, (logprob,), (None, logprob))
    assert wire_event(event, USAGE) == wire.Delta(
        "a", (4,), FinishReason.STOP, USAGE, logprobs=(logprob,), prompt_logprobs=(None, logprob)
    )


def test_a_head_s_values_come_with_the_times_of_its_life() -> None:
    event = SequenceEvent(sequence(0, Head(HeadKind.EMBED)), (), FinishReason.STOP, values=(0.5, 0.25))
    assert wire_event(event, USAGE) == wire.HeadDone("a", (0.5, 0.25), 0.25, 0.5, USAGE)


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        (FinishReason.DEADLINE, DeadlineExceeded, "dropped the request at its deadline"),
        (FinishReason.SHED, EngineRefused, "waited longer than its pool's queue may hold"),
    ],
)
@pytest.mark.parametrize("head", [None, Head(HeadKind.EMBED)])
def test_what_the_engine_gave_up_is_an_error_that_says_why(
    reason: FinishReason, kind: type[HeadraceError], says: str, head: Head | None
) -> None:
    failed = wire_event(SequenceEvent(sequence(0, head), (), reason), USAGE)
    assert isinstance(failed, wire.Failed)
    error = error_of(failed)
    assert type(error) is kind
    assert says in str(error)


def test_a_sequence_that_cannot_go_on_is_told_what_failed() -> None:
    event = SequenceEvent(sequence(), (), FinishReason.ERROR, failure=InvalidRequest("no token fits its schema"))
    failed = wire_event(event, USAGE)
    assert isinstance(failed, wire.Failed)
    error = error_of(failed)
    assert type(error) is InvalidRequest
    assert "no token fits its schema" in str(error)

"""Anything at all on the engine's socket: that message gets its error or its result, and the next request is right.

A client of bytes, not `EngineClient`: what it sends need not be what a client of ours would ever send.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st

from core_engine.contracts import (
    FinishReason,
    Head,
    HeadKind,
    Normalise,
    Path,
    Pool,
    Pooling,
    SamplingParams,
    WireDeadline,
)
from core_engine.errors import HeadraceError, InvalidRequest
from core_engine.llm import messages as wire
from core_engine.llm.grammar import Grammars
from tests.core_engine.llm.running import Served, serve
from tests.core_engine.llm.tiny import CONFIG, EOS, check, request, run_all, tiny_engine, tiny_tokenizer

PROMPT, NUM_TOKENS, PATIENCE_MS = (5, 6, 7), 6, 60_000
_ids = itertools.count()


class RawClient:
    """A DEALER that sends bytes and keeps what comes back, by attempt id."""

    def __init__(self, socket: zmq.Socket[bytes], served: Served, expected: tuple[int, ...]) -> None:
        self.socket, self.served, self.expected = socket, served, expected
        self.decoder = msgspec.msgpack.Decoder(wire.ToClient)
        self.as_engine = msgspec.msgpack.Decoder(wire.ToEngine)
        self.events: dict[str, list[wire.Event]] = {}

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def ended(self, attempt_id: str) -> wire.Event:
        """The last event of an attempt, waited for."""
        while True:
            for event in self.events.get(attempt_id, ()):
                if not isinstance(event, wire.Delta) or event.finish_reason is not None:
                    return event
            assert self.socket.poll(PATIENCE_MS), f"the engine does not answer {attempt_id!r}"
            message = self.decoder.decode(self.socket.recv())
            for event in message.events if isinstance(message, wire.Frame) else ():
                self.events.setdefault(event.attempt_id, []).append(event)

    def settle(self, payload: bytes) -> None:
        """Send it; if it happens to be a message that is answered, wait for the end."""
        self.send(payload)
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            message = self.as_engine.decode(payload)
            if not isinstance(message, wire.Hello | wire.Renew | wire.Abort):
                self.ended(message.attempt_id)

    def check_alive(self) -> None:
        """A normal request gives what it always gives, and nothing is left of anybody's."""
        attempt_id = f"normal-{next(_ids)}"
        self.send(msgspec.msgpack.encode(normal(attempt_id)))
        end = self.ended(attempt_id)
        assert isinstance(end, wire.Delta), end
        tokens = [
            token for event in self.events[attempt_id] if isinstance(event, wire.Delta) for token in event.token_ids
        ]
        assert tuple(tokens) == self.expected
        assert end.finish_reason is FinishReason.LENGTH
        self.events.clear()
        check(self.served.engine)  # it has nothing to do: nobody else looks at it now
        assert not self.served.engine.has_work
        assert self.served.engine.runner.sampler.num_sequences == 0
        assert self.served.engine.runner.prompt_logprobs.num_sequences == 0


def normal(attempt_id: str) -> wire.Generate:
    dials = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    return wire.Generate(
        attempt_id, PROMPT, dials, WireDeadline(None, 0), Pool.INTERACTIVE, "local", "", 0, Path.ONLINE
    )


@pytest.fixture(scope="module")
def raw() -> Iterator[RawClient]:
    (expected,) = run_all(tiny_engine(), [request(PROMPT, NUM_TOKENS)]).values()
    grammars = Grammars(tiny_tokenizer, CONFIG.vocab_size, frozenset({EOS}))
    context = zmq.Context()
    endpoint = f"inproc://{uuid.uuid4().hex}"
    with serve(context, endpoint, tiny_engine(grammars=grammars)) as served:
        socket = context.socket(zmq.DEALER)
        socket.connect(endpoint)
        yield RawClient(socket, served, tuple(expected))
        socket.close(linger=0)
    grammars.close()
    context.destroy(linger=0)


def often(usual: st.SearchStrategy[Any], anything: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly a good value, or nothing would ever get past the first check."""
    return st.integers(0, 9).flatmap(lambda n: anything if n == 0 else usual)


integers = st.integers(-(2**63), 2**64 - 1) | st.integers(-3, 300)
floats = st.floats() | st.floats(-3, 12)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("n" * 300)
ids = often(st.integers(0, CONFIG.vocab_size - 1), integers)
schemas = st.sampled_from(
    [
        "{}",
        '{"type": "boolean"}',
        '{"type": "string", "maxLength": 3}',
        '{"enum": [1, "a"]}',
        '{"type": "strin"}',
        "[",
        "",
    ]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)

samplings = st.builds(
    SamplingParams,
    max_tokens=often(st.integers(1, 20), integers),
    temperature=often(st.sampled_from([0.0, 1e-12, 1.0]), floats),
    top_k=often(st.integers(0, 200), integers),
    top_p=often(st.just(1.0) | st.floats(0.01, 1), floats),
    min_p=often(st.floats(0, 1), floats),
    seed=often(st.none() | st.integers(0, 9), integers),
    stop=often(st.just(()), st.lists(names, max_size=20).map(tuple)),
    stop_token_ids=often(st.just(()), st.lists(ids, max_size=70).map(tuple)),
    ignore_eos=st.booleans(),
    min_tokens=often(st.just(0), integers),
    repetition_penalty=often(st.just(1.0) | st.floats(0.5, 2), floats),
    presence_penalty=often(st.floats(-2, 2), floats),
    frequency_penalty=often(st.floats(-2, 2), floats),
    logit_bias=often(st.just(()), st.lists(st.tuples(ids, floats), max_size=5).map(tuple)),
    logprobs=often(st.none() | st.integers(0, 20), integers),
    prompt_logprobs=often(st.none() | st.integers(0, 20), integers),
    json_schema=often(st.none(), schemas),
)
labels = st.lists(st.lists(ids, max_size=4).map(tuple), max_size=5).map(tuple)
heads = st.builds(
    Head,
    kind=st.sampled_from(HeadKind),
    labels=labels,
    normalise=st.sampled_from(Normalise),
    name=names,
    pooling=st.sampled_from(Pooling),
)
nanoseconds = st.integers(-(2**63), 2**64 - 1)
deadlines = often(st.just(WireDeadline(None, 0)), st.builds(WireDeadline, st.none() | nanoseconds, nanoseconds))
requests = st.builds(
    wire.Generate,
    attempt_id=often(st.uuids().map(str), names),
    prompt_token_ids=often(st.lists(ids, min_size=1, max_size=40), st.just([]) | st.just([3] * 5000)).map(tuple),
    sampling=samplings,
    deadline=deadlines,
    pool=st.sampled_from(Pool),
    tenant=names,
    predictor=often(st.just(""), names),
    version=often(st.integers(0, 3), integers),
    path=st.sampled_from(Path),
    template_tokens=often(st.just(0), integers),
    head=often(st.none(), heads),
)


def check_its_own_fault(failed: wire.Failed) -> None:
    """The error speaks of the request, not of an engine that broke."""
    assert failed.code != HeadraceError.code, failed.message
    assert failed.message


@given(wanted=requests)
def test_a_request_of_any_values_gets_its_error_or_its_result_and_the_next_one_is_right(
    raw: RawClient, wanted: wire.Generate
) -> None:
    raw.send(msgspec.msgpack.encode(wanted))
    end = raw.ended(wanted.attempt_id)
    if isinstance(end, wire.Failed):
        check_its_own_fault(end)
    elif isinstance(end, wire.HeadDone):
        assert wanted.head is not None
    else:
        assert isinstance(end, wire.Delta)
        assert end.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert end.usage is not None
        assert 1 <= end.usage.completion_tokens <= wanted.sampling.max_tokens
    raw.check_alive()


@given(wanted=st.lists(requests, min_size=2, max_size=6, unique_by=lambda each: each.attempt_id), data=st.data())
def test_requests_side_by_side_some_aborted_all_end_and_the_next_one_is_right(
    raw: RawClient, wanted: list[wire.Generate], data: st.DataObject
) -> None:
    aborted = data.draw(st.sets(st.sampled_from([each.attempt_id for each in wanted])))
    for each in wanted:
        raw.send(msgspec.msgpack.encode(each))
    for attempt_id in aborted:
        raw.send(msgspec.msgpack.encode(wire.Abort(attempt_id)))
        raw.send(msgspec.msgpack.encode(wire.Abort(attempt_id)))  # after its end, too
    for each in wanted:
        if each.attempt_id not in aborted:
            end = raw.ended(each.attempt_id)
            if isinstance(end, wire.Failed):
                check_its_own_fault(end)
    raw.check_alive()


PLAIN = msgspec.msgpack.encode(normal("whole"))
values = st.recursive(
    st.none() | st.booleans() | integers | floats | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=15,
)
tags = st.sampled_from(["hello", "generate", "score", "load", "abort", "head", "frame", ""])


@given(payload=st.binary(max_size=200))
@example(payload=b"")
@example(payload=b"\x91" * 200_000)  # a list in a list in a list ...
@example(payload=b"\xdd\xff\xff\xff\xff")  # a list of four billion
@example(payload=b"\xc6\xff\xff\xff\xff")
@example(payload=msgspec.msgpack.encode(["generate", "\ud7ff" * 10]))
def test_bytes_that_are_no_message_are_passed_over(raw: RawClient, payload: bytes) -> None:
    raw.send(payload)
    raw.check_alive()


@given(
    cut=st.integers(0, len(PLAIN) - 1), flips=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 255)), max_size=3)
)
def test_a_message_that_was_cut_or_damaged_does_no_harm(raw: RawClient, cut: int, flips: list[tuple[int, int]]) -> None:
    raw.settle(PLAIN[:cut])
    damaged = bytearray(PLAIN)
    for at, mask in flips:
        damaged[at % len(damaged)] ^= mask
    raw.settle(bytes(damaged))
    raw.check_alive()


@given(tag=tags, fields=st.lists(values, max_size=12))
def test_a_message_of_the_wrong_shape_is_passed_over(raw: RawClient, tag: str, fields: list[object]) -> None:
    raw.settle(msgspec.msgpack.encode([tag, *fields]))
    raw.check_alive()


@given(parts=st.lists(st.binary(max_size=20), min_size=2, max_size=4))
def test_a_message_of_several_parts_is_passed_over(raw: RawClient, parts: list[bytes]) -> None:
    raw.send(*parts)
    raw.check_alive()


def test_what_is_wrong_comes_back_by_name(raw: RawClient) -> None:
    wanted = normal("wrong")
    hot = msgspec.structs.replace(wanted, sampling=SamplingParams(temperature=7.0))
    raw.send(msgspec.msgpack.encode(hot))
    end = raw.ended("wrong")
    assert isinstance(end, wire.Failed)
    assert end.code == InvalidRequest.code
    assert "temperature is 7.0" in end.message
    raw.check_alive()

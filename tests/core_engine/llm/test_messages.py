"""What goes over the wire comes out as it went in, and counts add up."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import FinishReason, Pool, Usage
from core_engine.llm import messages as wire

counts = st.integers(0, 2**40)
labels = st.dictionaries(st.sampled_from(["stop", "length", "abort", "queue_full"]), counts)
counters = st.builds(
    wire.Counters,
    admitted=counts,
    finished=labels,
    refused=labels,
    preemptions=counts,
    prompt_tokens=counts,
    steps=counts,
    step_s_sum=st.floats(0, 1e6),
)
snapshots = st.builds(
    wire.Snapshot,
    step=counts,
    counters=st.dictionaries(st.sampled_from(list(Pool)), counters),
    scoring=counters,
    aborts=st.dictionaries(st.sampled_from(list(wire.AbortReason)), counts),
    is_draining=st.booleans(),
)


@given(snapshots)
def test_a_snapshot_comes_out_as_it_went_in(snapshot: wire.Snapshot) -> None:
    usage = Usage(prompt_tokens=3, cached_tokens=1, queue_s=0.5, prefill_s=0.25, decode_s=0.125)
    frame = wire.Frame((wire.Delta("a", (1, 2), FinishReason.STOP, usage),), snapshot)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=wire.ToClient) == frame
    beat = wire.Heartbeat("one", 7, True, snapshot)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(beat), type=wire.Heartbeat) == beat


def test_every_message_to_the_engine_is_told_from_the_others() -> None:
    for message in (wire.Hello(), wire.Renew(), wire.Abort("a"), wire.LoadScorer("a", "s:1", "p", "0")):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=wire.ToEngine) == message


@given(counters, counters)
def test_counters_add_up_field_by_field_and_label_by_label(a: wire.Counters, b: wire.Counters) -> None:
    both = a + b
    for name in wire.Counters.__struct_fields__:
        own, others, together = getattr(a, name), getattr(b, name), getattr(both, name)
        if isinstance(own, dict):
            assert together == {x: own.get(x, 0) + others.get(x, 0) for x in {*own, *others}}
        else:
            assert together == own + others


@given(counters)
def test_a_copy_stays_as_it_was(counted: wire.Counters) -> None:
    copy, before = counted.copy(), msgspec.msgpack.encode(counted)
    counted.admitted += 1
    counted.finished["stop"] = counted.finished.get("stop", 0) + 1
    counted.refused.clear()
    assert msgspec.msgpack.encode(copy) == before

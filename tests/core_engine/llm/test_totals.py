"""Counts over restarts against a plain sum of everything that any engine has counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Pool
from core_engine.llm.messages import AbortReason, Counters, Snapshot
from core_engine.llm.totals import EngineTotals

events = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.sampled_from(list(Pool)), st.sampled_from(["stop", "length", "abort"])),
        st.tuples(st.just("restart"), st.just(Pool.BULK), st.just("")),
    ),
    max_size=40,
)


@given(events)
def test_totals_are_the_sum_over_all_engines_and_never_fall(events: list[tuple[str, Pool, str]]) -> None:
    totals, incarnation, step = EngineTotals(), 0, 0
    counters = {pool: Counters() for pool in Pool}
    expected: dict[tuple[Pool, str], int] = {}
    for kind, pool, reason in events:
        if kind == "restart":
            incarnation, step, counters = incarnation + 1, 0, {pool: Counters() for pool in Pool}
        else:
            finished = counters[pool].finished
            finished[reason] = finished.get(reason, 0) + 1
            counters[pool].generation_tokens += 2
            expected[pool, reason] = expected.get((pool, reason), 0) + 1
            step += 1
        seen = Snapshot(step=step, counters={p: c.copy() for p, c in counters.items()})
        totals.see(str(incarnation), seen)
    told = totals.snapshot
    assert {(p, r): n for p, c in told.counters.items() for r, n in c.finished.items()} == expected
    assert told.step == sum(expected.values())
    assert sum(c.generation_tokens for c in told.counters.values()) == 2 * told.step


def test_every_pool_is_there_before_any_engine_was_heard() -> None:
    told = EngineTotals().snapshot
    assert told.counters == {pool: Counters() for pool in Pool}
    assert (told.step, told.aborts) == (0, {})


def test_seeing_the_same_snapshot_again_counts_it_once() -> None:
    totals = EngineTotals()
    seen = Snapshot(step=3, aborts={AbortReason.LEASE: 2}, scoring=Counters(admitted=5), lost_spans=7)
    for _ in range(4):
        totals.see("one", seen)
    told = totals.snapshot
    assert (told.step, told.aborts, told.scoring.admitted, told.lost_spans) == (3, {AbortReason.LEASE: 2}, 5, 7)


def test_spans_that_any_engine_lost_are_added_up() -> None:
    totals = EngineTotals()
    for incarnation, lost_spans in (("one", 4), ("two", 1), ("two", 3)):
        totals.see(incarnation, Snapshot(lost_spans=lost_spans))
    assert totals.snapshot.lost_spans == 7

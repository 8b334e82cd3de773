from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import Pool
from core_engine.errors import ConfigurationError
from core_engine.simulation.trace import PREFIX_TOKENS, Trace, TraceRow
from core_engine.simulation.workload import Shaping, backlog, interactive
from tests.core_engine.simulation.traces import job

TIMED = Trace("timed", (TraceRow(10, 4, 0.0), TraceRow(20, 8, 6.0), TraceRow(30, 2, 12.0)), is_timed=True)
BACKLOG = Trace("backlog", tuple(TraceRow(n, n) for n in range(1, 9)), is_timed=False)


def test_speed_divides_arrival_times() -> None:
    assert [each.arrival_s for each in interactive(TIMED, Shaping(100, speed=3.0))] == [0.0, 2.0, 4.0]


def test_a_piece_of_the_trace_begins_at_zero() -> None:
    work = interactive(TIMED, Shaping(100, speed=2.0, start_s=5.0, duration_s=5.0))
    assert [(each.arrival_s, each.prompt_tokens) for each in work] == [(0.5, 20)]


def test_the_scheduler_sees_the_longest_output_unless_lengths_are_known() -> None:
    assert [each.max_tokens for each in interactive(TIMED, Shaping(100))] == [8, 8, 8]
    assert [each.max_tokens for each in interactive(TIMED, Shaping(100, known_lengths=True))] == [4, 8, 2]


def test_lengths_are_scaled_up_to_whole_tokens() -> None:
    work = interactive(TIMED, Shaping(100, length_scale=1 / 8))
    assert [(each.prompt_tokens, each.output_tokens) for each in work] == [(2, 1), (3, 1), (4, 1)]


@given(
    context=st.integers(2, 60),
    rows=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=10),
)
def test_whatever_is_clipped_fits_and_is_counted(context: int, rows: list[tuple[int, int]]) -> None:
    trace = Trace("any", tuple(TraceRow(prompt, output, 0.0) for prompt, output in rows), is_timed=True)
    work = interactive(trace, Shaping(context))
    cut = 0
    for made, (prompt, output) in zip(work, rows, strict=True):
        assert made.prompt_tokens >= 1
        assert 1 <= made.output_tokens <= made.max_tokens
        assert made.prompt_tokens + made.max_tokens <= context
        cut += (made.prompt_tokens, made.output_tokens) != (prompt, output)
    assert work.num_clipped == cut


def test_a_backlog_is_bulk_and_its_order_follows_the_seed() -> None:
    made = [backlog(BACKLOG, Shaping(100), seed) for seed in (1, 1, 2)]
    orders = [[each.prompt_tokens for each in work] for work in made]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(1, 9))
    assert {each.pool for each in made[0]} == {Pool.BULK}


def test_a_timed_trace_can_be_a_backlog_and_a_backlog_cannot_be_timed() -> None:
    assert {each.arrival_s for each in backlog(TIMED, Shaping(100), 0)} == {0.0}
    with pytest.raises(ConfigurationError, match="backlog has no arrival times: it can only be a backlog"):
        interactive(BACKLOG, Shaping(100))


def test_an_empty_piece_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no request from 7 s to 8 s"):
        interactive(TIMED, Shaping(100, start_s=7.0, duration_s=1.0))


@pytest.mark.parametrize("name", ["speed", "duration_s", "length_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_shape_that_cannot_be_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} = {value!r}, expected a number above 0"):
        replace(Shaping(100), **{name: value})  # type: ignore[arg-type]


def test_a_context_of_one_token_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_context_tokens = 1, expected at least 2"):
        Shaping(1)


def test_prompts_share_nothing_unless_their_trace_says_so() -> None:
    alone, other, bulk = job(0), job(1), job(0, pool=Pool.BULK)
    firsts = {each.request().prompt_token_ids[0] for each in (alone, other, bulk)}
    assert len(firsts) == 3


@pytest.mark.parametrize(("prompt", "equal"), [(PREFIX_TOKENS, PREFIX_TOKENS), (2 * PREFIX_TOKENS, PREFIX_TOKENS)])
def test_equal_prefix_ids_are_equal_tokens(prompt: int, equal: int) -> None:
    one = job(0, prompt=prompt, prefix_ids=(5, 6)).request().prompt_token_ids
    two = job(1, prompt=prompt, prefix_ids=(5, 7)).request().prompt_token_ids
    assert len(one) == len(two) == prompt
    assert one[:equal] == two[:equal]
    assert all(a != b for a, b in zip(one[equal:], two[equal:], strict=True))


def test_a_request_carries_what_its_job_says() -> None:
    request = job(3, prompt=5, output=2, pool=Pool.BULK, tenant="t", deadline_s=9.0).request()
    assert len(request.prompt_token_ids) == 5
    assert (request.attempt_id, request.pool, request.tenant) == ("bulk-3", Pool.BULK, "t")
    assert (request.deadline.at_s, request.sampling.max_tokens) == (9.0, 64)

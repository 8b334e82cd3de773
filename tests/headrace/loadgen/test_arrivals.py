from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.simulation.trace import read_trace
from headrace.loadgen.arrivals import before, constant, of_trace, poisson
from tests.core_engine.simulation.traces import azure, lengths

rates = st.floats(0.01, 1e5)


@given(rates, st.integers())
def test_poisson_arrivals_come_in_order_and_the_seed_makes_them(rate: float, seed: int) -> None:
    one, other = (list(itertools.islice(poisson(rate, seed), 50)) for _ in range(2))
    assert one == other
    assert one == sorted(one)
    assert one[0] >= 0


def test_poisson_gaps_are_exponential() -> None:
    due_s = list(itertools.islice(poisson(20.0, seed=1), 20_000))
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(due_s)]
    assert statistics.fmean(gaps_s) == pytest.approx(1 / 20, rel=0.03)
    assert statistics.pstdev(gaps_s) == pytest.approx(statistics.fmean(gaps_s), rel=0.03)


@given(rates)
def test_constant_arrivals_are_one_gap_apart(rate: float) -> None:
    assert list(itertools.islice(constant(rate), 4)) == [0.0, 1 / rate, 2 / rate, 3 / rate]


@given(st.floats(0, 5))
def test_only_what_is_due_before_the_end_is_sent(end_s: float) -> None:
    due_s = list(before(constant(10.0), end_s))
    assert len(due_s) == sum(number / 10.0 < end_s for number in range(100))
    assert all(each_s < end_s for each_s in due_s)


def test_a_traces_own_times_can_be_made_faster(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path / "t.csv", [(1.0, 3, 4), (2.0, 3, 4), (5.0, 3, 4)]))
    assert list(of_trace(trace, 2.0)) == pytest.approx([0.0, 0.5, 2.0])


def test_a_backlog_has_no_arrivals(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"backlog.csv has no arrival times; give --rate"):
        of_trace(read_trace(lengths(tmp_path / "backlog.csv", [(3, 4)])), 1.0)

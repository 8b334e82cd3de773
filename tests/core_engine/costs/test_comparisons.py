"""What a shadow version would change, summed over the spools of every worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from core_engine.contracts import Path as DoorPath
from core_engine.contracts import Rung
from core_engine.costs.comparisons import EDGES, Compared, compared
from core_engine.costs.facts import ComparisonFact, Fact
from core_engine.costs.loader import load_spools
from tests.core_engine.costs.ledger import at, caller, ledger, load, write_spool


def comparison(attempt_id: str = "s", second: float = 1.0, **changes: Any) -> ComparisonFact:
    told: dict[str, Any] = {
        "attempt_id": attempt_id,
        "predictor": "delay",
        "version": 1,
        "shadow_version": 2,
        "difference": 0.125,
        "disagrees": False,
        "compared_at": at(second),
    }
    return ComparisonFact(**told | changes)


def found(database: Engine, facts: list[Fact]) -> list[Compared]:
    load(database, facts)
    with database.connect() as connection:
        return compared(connection, "delay")


def test_differences_are_averaged_with_and_without_their_sign(database: Engine) -> None:
    facts = [comparison("a", 1.0, difference=-0.25), comparison("b", 3.0, difference=0.75, disagrees=True)]
    (pair,) = found(database, [*facts, comparison("other", predictor="risk")])
    assert (pair.version, pair.shadow_version, pair.count) == (1, 2, 2)
    assert (pair.mean_difference, pair.mean_absolute_difference) == (0.25, 0.5)
    assert (pair.judged, pair.disagreements) == (2, 1)
    assert (pair.from_at, pair.to_at) == (at(1.0), at(3.0))


def test_without_a_threshold_nothing_is_judged(database: Engine) -> None:
    (pair,) = found(database, [comparison("a", disagrees=None), comparison("b", disagrees=True)])
    assert (pair.count, pair.judged, pair.disagreements) == (2, 1, 1)
    (pair,) = found(database, [comparison(disagrees=None)])
    assert (pair.judged, pair.disagreements) == (0, 0)


def test_answers_of_live_meanwhile_are_those_of_its_model_on_the_online_path(database: Engine) -> None:
    facts: list[Fact] = [comparison("a", 1.0), comparison("b", 5.0)]
    facts += [caller("counts", 2.0), caller("last", 5.0), caller("later", 5.1), caller("prior", 2.0, rung=Rung.PRIOR)]
    facts += [caller("canary", 2.0, version=2), caller("shadow", 2.0, path=DoorPath.SHADOW)]
    assert found(database, facts)[0].live_answers == 2


def test_each_pair_of_versions_stands_alone_the_latest_first(database: Engine) -> None:
    facts: list[Fact] = [comparison("a"), comparison("b", 9.0, shadow_version=3), comparison("c", 2.0, version=3)]
    pairs = [(pair.version, pair.shadow_version, pair.count) for pair in found(database, facts)]
    assert pairs == [(1, 3, 1), (3, 2, 1), (1, 2, 1)]


def test_nothing_compared_is_no_pair(database: Engine) -> None:
    assert found(database, [caller()]) == []


@settings(max_examples=25)
@given(differences=st.lists(st.floats(-1, 1) | st.sampled_from(EDGES), min_size=1, max_size=30))
def test_every_difference_is_in_the_one_bin_that_holds_it(database: Engine, differences: list[float]) -> None:
    facts: list[Fact] = [comparison(str(n), difference=value) for n, value in enumerate(differences)]
    (pair,) = found(database, facts)
    bins = [sum(value >= edge for edge in EDGES) for value in differences]
    assert list(pair.histogram) == [bins.count(n) for n in range(len(EDGES) + 1)]
    assert pair.mean_absolute_difference == pytest.approx(sum(map(abs, differences)) / len(differences))


def test_workers_add_up_and_a_spool_that_is_read_again_counts_once(tmp_path: Path) -> None:
    with ledger(tmp_path) as database:
        write_spool(tmp_path / "spool", [comparison("a"), comparison("b")], "door-1-0000.jsonl")
        write_spool(tmp_path / "spool", [comparison("b"), comparison("c")], "door-2-0000.jsonl")
        for _ in range(2):
            load_spools(database, tmp_path / "spool")
        with database.connect() as connection:
            (pair,) = compared(connection, "delay")
    assert pair.count == 3

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.comparison.results import Result, headline, merged, read, stored, table
from benchmarks.comparison.side import OURS, Label


def result(peer: str, value: float, measure: str = "w1_c8", *, run: str = "1", bits: int = 8, how: str = "") -> Result:
    label = Label(f"{peer}-{bits}", peer, f"{bits} bits", bits, "1.2")
    is_lower_better = measure in ("decode_b1", "kl")
    return Result(run, measure, "unit", label, (value,), is_lower_better=is_lower_better, how=how)


def test_a_ratio_above_one_means_ours_is_better_in_either_direction() -> None:
    results = [result(OURS, 30), result("a", 10), result(OURS, 4, "decode_b1"), result("a", 10, "decode_b1")]
    assert headline(results) == {"decode_b1_ratio": 2.5, "w1_c8_ratio": 3.0}


def test_the_headline_is_against_the_best_peer() -> None:
    assert headline([result(OURS, 30), result("a", 10), result("b", 20)]) == {"w1_c8_ratio": 1.5}


def test_classes_of_weights_are_never_mixed() -> None:
    results = [result(OURS, 30), result("a", 100, bits=16)]
    assert headline(results) == {}
    assert headline([*results, result(OURS, 50, bits=16)]) == {"w1_c8_16bit_ratio": 0.5}


def test_only_sides_of_one_run_are_compared() -> None:
    assert headline([result(OURS, 30), result("a", 10, run="2")]) == {}


def test_any_precision_compares_the_fastest_of_both() -> None:
    ours = [result(OURS, 4, "decode_b1"), result(OURS, 2, "decode_b1", bits=4)]
    theirs = [result("a", 12, "decode_b1"), result("a", 10, "decode_b1", bits=4)]
    assert headline([*ours, *theirs])["decode_b1_any_ratio"] == 5.0


def test_scorings_are_compared_with_the_peers_generation_of_one_token() -> None:
    label = Label("ours", OURS, "int8", 8, "1")
    scoring = Result("1", "w3_score", "req/s", label, (90.0,), is_lower_better=False, against="w3")
    results = [result(OURS, 80, "w3"), scoring, result("a", 60, "w3")]
    assert headline(results) == pytest.approx({"w3_ratio": 80 / 60, "w3_score_ratio": 1.5})
    assert [row["ours / theirs"] for row in table(results)] == ["", "1.33", "1.50 (w3 of a-8)"]


def test_divergence_stands_beside_the_precision_and_says_when_it_was_emulated() -> None:
    kl = [result(OURS, 0.01, "kl"), result("a", 0.02, "kl", how="emulated: x"), result("b", 0.5, "kl")]
    results = [result(OURS, 30), result("a", 10), *kl]
    assert [row["KL to fp32"] for row in table(results)[:2]] == ["0.0100", "0.0200 emulated"]
    assert headline(results) == {"w1_c8_ratio": 3.0, "kl_ours": 0.01, "kl_peer": 0.02}


def test_results_of_several_commands_are_kept_each_beside_its_own_run(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert read(path) == []
    first = [result(OURS, 30), result("a", 10)]
    path.write_text(json.dumps({"rows": stored(first)}))
    second = [result(OURS, 36, run="2"), result("b", 20, run="2")]
    both = merged(read(path), second)
    assert headline(both) == {"w1_c8_ratio": 1.8}
    assert {each.label.peer: each.run for each in both if not each.is_ours} == {"a": "1", "b": "2"}
    again = merged(both, [result(OURS, 40, run="3"), result("a", 10, run="3")])
    assert [each.run for each in again] == ["2", "2", "3", "3"]
    assert headline(again) == {"w1_c8_ratio": 1.8}


def test_the_table_puts_ours_first_in_every_measure_and_class() -> None:
    results = [result("a", 1), result("a", 1, bits=16), result(OURS, 1), result(OURS, 1, bits=16), result("a", 1, "w3")]
    sides = [(row["measure"], row["side"]) for row in table(results)]
    assert sides == [
        ("w1_c8", f"{OURS}-8"),
        ("w1_c8", "a-8"),
        ("w1_c8", f"{OURS}-16"),
        ("w1_c8", "a-16"),
        ("w3", "a-8"),
    ]

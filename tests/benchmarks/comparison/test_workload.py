from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison.workload import SALTS, Job, generated, load_workload, num_output, salted, shortened


def test_the_generated_workload_has_the_recorded_lengths_and_says_what_it_is() -> None:
    workload = generated()
    assert len(workload.w1) == len(workload.gaps) == 64
    assert (sum(len(job.prompt) for job in workload.w1), num_output(workload.w1)) == (10_702, 8_210)
    assert {len({job.prompt[:384] for job in workload.w3}), len(workload.w3)} == {1, 64}
    assert [len(jobs[0].prompt) for jobs in workload.prefill.values()] == [512, 2048]
    assert "not found" in workload.source


def test_the_workload_is_the_same_every_time() -> None:
    assert generated() == generated()


def test_a_recorded_workload_is_read_where_it_is(tmp_path: Path) -> None:
    request = {"prompt": [1, 2, 3], "max_tokens": 4}
    single = {"decode": request, "prefill512": [request], "prefill2048": [request, request]}
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"W1": [request], "W3": [request], "W4": single, "W2_gaps": [0.5]}))
    workload = load_workload(path)
    assert workload.w1 == (Job((1, 2, 3), 4),)
    assert len(workload.prefill[2048]) == 2
    assert "not found" not in workload.source
    assert load_workload(tmp_path / "absent.json") == generated()


@given(one=st.integers(0, len(SALTS) - 1), other=st.integers(0, len(SALTS) - 1))
def test_salts_keep_runs_apart_and_what_requests_share_together(one: int, other: int) -> None:
    jobs = generated().w3[:3]
    first, second = salted(jobs, one), salted(jobs, other)
    assert [len(job.prompt) for job in first] == [len(job.prompt) for job in jobs]
    assert len({job.prompt[:384] for job in first}) == 1
    assert (first[0].prompt[0] == second[0].prompt[0]) is (one == other)
    assert all(job.prompt[0] != first[0].prompt[0] for job in generated().w1)


def test_more_salts_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="repeat less"):
        salted([], len(SALTS))


def test_shortened_requests_keep_their_prompts() -> None:
    assert shortened([Job((1, 2), 9), Job((3,), 2)], 4) == [Job((1, 2), 4), Job((3,), 2)]

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from benchmarks.comparison.installation import PeerFailed
from benchmarks.comparison.measures import Measure, speed_measures, take_turns
from benchmarks.comparison.side import Label, Side
from benchmarks.comparison.workload import Job, generated

WORKLOAD = generated()


@dataclass
class StubSide:
    """Takes 1 s for every prompt's start and 0.1 s for every token; fails from call `fails_at` on."""

    name: str
    calls: list[tuple[str, int]] = field(default_factory=list)  # shared by sides: who, first token of the first prompt
    fails_at: int = 1 << 30
    peak_rss_bytes: int = 7
    num_calls: int = 0

    @property
    def label(self) -> Label:
        return Label(self.name, self.name, "none", 8, "1")

    def run(self, jobs: Sequence[Job], concurrency: int) -> float:
        self.num_calls += 1
        if self.num_calls >= self.fails_at:
            raise PeerFailed("it broke")
        self.calls.append((self.name, jobs[0].prompt[0]))
        return sum(1 + job.max_tokens / 10 for job in jobs) / concurrency

    def since_start_s(self) -> float:
        return 0.0

    def close(self) -> None: ...


def named(name: str, *, quick: bool = False) -> Measure:
    return next(each for each in speed_measures(WORKLOAD, quick=quick) if each.name == name)


def test_decode_is_the_time_per_token_without_the_prompt() -> None:
    assert named("decode_b1").run(StubSide("a"), 0) == pytest.approx(100.0)


def test_a_decode_time_that_noise_has_eaten_is_no_figure() -> None:
    class Hurried(StubSide):
        def run(self, jobs: Sequence[Job], concurrency: int) -> float:
            return 1.0

    with pytest.raises(PeerFailed, match="too busy"):
        named("decode_b1").run(Hurried("a"), 0)


def test_prefill_is_the_prompt_s_tokens_over_the_time_to_one_token() -> None:
    assert named("prefill2048").run(StubSide("a"), 0) == pytest.approx(2048 / 1.1)


def test_throughput_counts_output_tokens_of_the_requests_of_that_concurrency() -> None:
    measure = named("w1_c8")
    jobs = WORKLOAD.w1[:32]
    tokens = sum(job.max_tokens for job in jobs)
    assert measure.num_requests == 32
    assert measure.run(StubSide("a"), 0) == pytest.approx(tokens / ((32 + tokens / 10) / 8))


def test_quick_serves_fewer_and_shorter_requests() -> None:
    for measure in speed_measures(WORKLOAD, quick=True):
        if measure.is_ours_only:
            continue
        short, whole = StubSide("a"), StubSide("a")
        named_whole = named(measure.name)
        measure.run(short, 0)
        named_whole.run(whole, 0)
        assert measure.num_requests <= named_whole.num_requests


def test_sides_take_turns_with_the_same_fresh_prompts() -> None:
    calls: list[tuple[str, int]] = []
    sides: list[Side] = [StubSide("a", calls), StubSide("b", calls)]
    figures = take_turns(sides, [named("w1_c8"), named("prefill512")], rounds=3)
    assert [name for name, _ in calls[:6]] == ["a", "b"] * 3
    salts = {name: [salt for who, salt in calls if who == name] for name in ("a", "b")}
    assert salts["a"] == salts["b"]
    assert len(set(salts["a"])) == len(salts["a"]) == 3 + 3 * 5
    assert [len(each.values) for each in figures] == [3] * 4


def test_a_side_that_fails_is_left_out_of_that_measure_only_and_says_why() -> None:
    sides: list[Side] = [StubSide("a", fails_at=2), StubSide("b")]
    broken, whole = take_turns(sides, [named("w1_c8")], rounds=3)
    assert (len(broken.values), broken.failure) == (1, "w1_c8 of a: it broke")
    assert (len(whole.values), whole.failure) == (3, "")


def test_what_only_we_can_do_is_not_asked_of_a_peer() -> None:
    assert take_turns([StubSide("a")], [named("w3_score")], rounds=1) == []

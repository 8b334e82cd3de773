"""What the benchmark makes of the generator's reports: capacities, rates, headline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.door.stand import Stand
from benchmarks.online import BUDGET_MS, DELAY, LM_BATCH_1, LM_CONCURRENCY, QUICK, RISK, Bench, Capacity, at_every_hour
from core_engine.settings import EngineSettings
from headrace.bench_serve import ServeOptions
from headrace.loadgen.report import Report
from tests.headrace.loadgen.runs import answered, failed, reported

FLIGHTS = [{"origin": origin, "scheduled_departure": "2026-12-01T09:30:00-05:00"} for origin in ("JFK", "EWR")]
OURS, BARE = "http://door", "http://bare"


class Scripted:
    """A generator that sends nothing: so many answers per second by the model, half of them where we are asked."""

    def __init__(self) -> None:
        self.asked: list[ServeOptions] = []
        self.num_answers = 100

    async def load(self, options: ServeOptions) -> Report:
        self.asked.append(options)
        if options.chat:
            return reported([failed(0.0, "http_503", 1.0 + n / 100) for n in range(100)])
        share = 1 if options.url == BARE else 2
        rungs: Any = [{"rung": "model"}, {"rung": "prior", "degraded": True, "reason": "deadline"}]
        tokens = {"prompt_tokens": 80, "cached_tokens": 64}
        times_ms = [40.0 + 20.0 * (n % share) for n in range(self.num_answers)]
        records = [answered(0.0, ms, **rungs[n % share], **tokens) for n, ms in enumerate(times_ms)]
        return reported(records, goodput={"e2el": 50.0}, request_rate=options.rate, max_concurrency=options.concurrency)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    stand = Stand(OURS, BARE, tmp_path, FLIGHTS, EngineSettings(), os.getpid())
    return Bench(stand, Scripted(), QUICK)  # type: ignore[arg-type]


def asked_of(bench: Bench) -> list[ServeOptions]:
    generator = bench._generator
    assert isinstance(generator, Scripted)
    return generator.asked


async def test_capacity_counts_the_answers_of_the_rung_that_is_asked_for(bench: Bench) -> None:
    capacity = await bench.capacity()
    rate = 100 / 0.06  # the last of a hundred answers is there after 60 ms
    assert capacity.delay == capacity.lm == capacity.door == pytest.approx(rate / 2)
    assert capacity.bare == pytest.approx(100 / 0.04)
    assert bench.headline["capacity_vs_bare"] == pytest.approx(1 / 3)
    lm = [options for options in asked_of(bench) if options.predict == RISK]
    assert [(options.concurrency, options.rate) for options in lm] == [(LM_BATCH_1, None), (LM_CONCURRENCY, None)]


async def test_the_language_models_scores_are_timed_at_batch_1_and_at_4_with_their_prefix_hits(bench: Bench) -> None:
    await bench.capacity()
    told = {name: value for name, value in bench.headline.items() if name.startswith("lm_")}
    assert told == {
        "lm_score_p50_ms_c1": pytest.approx(50.0),
        "lm_score_p99_ms_c1": pytest.approx(60.0),
        "lm_score_p99_ms_c4": pytest.approx(60.0),
        "lm_score_prefix_hit_rate": 0.8,
    }


def test_the_language_model_is_asked_about_every_flight_at_every_hour_and_never_the_same_twice() -> None:
    asked = at_every_hour(FLIGHTS)
    assert len({(body["origin"], body["scheduled_departure"]) for body in asked}) == len(asked) == 48
    assert asked[1] == {"origin": "EWR", "scheduled_departure": "2026-12-01T01:30:00-05:00"}


async def test_a_percentile_of_too_few_answers_is_not_known(bench: Bench) -> None:
    scripted = bench._generator
    assert isinstance(scripted, Scripted)
    scripted.num_answers = 99
    await bench.capacity()
    await bench.lm(Capacity(1.0, 1.0, 1.0, 1.0))
    assert bench.headline["lm_score_p99_ms_c4"] is bench.headline["lm_score_p99_ms_1x"] is None


async def test_open_loops_go_at_multiples_of_the_capacity_with_a_budget(bench: Bench) -> None:
    await bench.delay(Capacity(bare=900.0, delay=400.0, door=1000.0, lm=20.0))
    await bench.lm(Capacity(bare=900.0, delay=400.0, door=1000.0, lm=20.0))
    asked = asked_of(bench)
    assert [(options.predict, options.rate) for options in asked] == [
        (DELAY, pytest.approx(280.0)),
        (DELAY, 400.0),
        (RISK, 20.0),
        (RISK, 40.0),
        (RISK, 100.0),
    ]
    assert all(options.concurrency is None and options.goodput == ("e2el:50",) for options in asked)
    assert asked[0].bodies is not None
    assert f'"budget_ms": {BUDGET_MS}' in asked[0].bodies.read_text()
    assert bench.headline["in_budget_delay_0.7x"] == bench.headline["degraded_delay_0.7x"] == 0.5
    assert bench.headline["in_budget_lm_5x"] == 0.5


async def test_refusals_are_timed_by_their_own_percentile(bench: Bench) -> None:
    await bench.refusal(Capacity(1.0, 1.0, 1.0, 1.0))
    assert bench.headline["refusal_p99_ms"] == pytest.approx(1.98, abs=0.01)


async def test_the_door_below_its_ceiling_answers_from_the_prior_alone(bench: Bench) -> None:
    await bench.door(Capacity(bare=900.0, delay=400.0, door=1000.0, lm=20.0))
    (options,) = asked_of(bench)
    assert options.rate == 800.0
    assert options.bodies is not None
    assert '"rungs": ["prior"]' in options.bodies.read_text()

"""What the benchmark of the HTTP path asks for, and what it makes of the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.door.path_figures import Figures
from benchmarks.http_path import GROWTH, QUICK, RATE, Bench

CEILING = 30_000.0


class Scripted:
    """A door that delivers what is offered up to its ceiling, at 20 us per token; a bare one at 10."""

    folder = Path()

    def __init__(self) -> None:
        self.rates: list[float] = []

    def stream(self, _door: object, tokens_per_s: float, _seconds: float, _warm_up_s: float) -> Figures:
        self.rates.append(tokens_per_s)
        delivered = min(tokens_per_s, CEILING)
        itl_ms = (0.1, tokens_per_s / 1e3)
        is_below = tokens_per_s <= CEILING
        return Figures(tokens_per_s, delivered, 0.02, 0.5, 1.0, (5.0, 9.0), itl_ms, 1.0, is_below)

    def bare_stream(self, _bare: object, tokens_per_s: float, _seconds: float, _warm_up_s: float) -> Figures:
        return Figures(tokens_per_s, tokens_per_s, 0.01, 0.5, 1.0)

    def whole(self, _door: object, tokens_per_s: float, _max_tokens: int) -> Figures:
        return Figures(tokens_per_s, tokens_per_s, 0.015, 0.5, 1.0)


@pytest.fixture
def bench() -> Bench:
    return Bench(Scripted(), QUICK)  # type: ignore[arg-type]


def test_the_rate_grows_until_the_door_has_failed_twice(bench: Bench) -> None:
    assert bench.stream(None, None) == CEILING  # type: ignore[arg-type]
    stand = bench._stand
    assert isinstance(stand, Scripted)
    growing = [QUICK.first_rate]
    while growing[-1] <= CEILING:
        growing.append(growing[-1] * GROWTH)
    growing.append(growing[-1])
    at_last = [0.25 * CEILING, 0.5 * CEILING, 0.75 * CEILING]
    assert stand.rates == pytest.approx([RATE, *growing, *at_last])
    assert [row["kept up"] for row in bench.rows].count("no") == 2


def test_the_headline_has_cost_ratio_ceiling_and_gaps(bench: Bench) -> None:
    bench.stream(None, None)  # type: ignore[arg-type]
    bench.whole(None)  # type: ignore[arg-type]
    assert bench.headline == pytest.approx(
        {
            "cpu_s_per_1k_tokens": 0.02,
            "cpu_vs_bare": 2.0,
            "delivered_at_20k": RATE,
            "saturation_tokens_per_s": CEILING,
            "whole_cpu_s_per_1k_tokens": 0.015,
            **{f"itl_added_p50_ms_{share}": 0.1 for share in (25, 50, 75)},
            **{f"itl_added_p99_ms_{share}": share / 100 * CEILING / 1e3 for share in (25, 50, 75)},
        }
    )

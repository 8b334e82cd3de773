"""Rates, delays and gaps of a window, from instants made by hand."""

from __future__ import annotations

import pytest

from benchmarks.door.fake_engine import Pace, Steps
from benchmarks.door.path_figures import bare_figures, stream_figures, whole_figures
from benchmarks.door.stream_readers import Seen

PACE = Pace(2, 20.0, (1,))  # a step every 100 ms
SENT = tuple(10.0 + number / 10 for number in range(40))


def seen(delays_s: list[float]) -> Seen:
    """Two streams whose token n arrives `delays_s[n]` after it was sent; a window of two seconds."""
    arrivals = [at_s + delay_s for at_s, delay_s in zip(SENT, delays_s, strict=True)]
    stream = [arrivals[0], *arrivals]  # a role comes with the first token
    return Seen(11.05, 13.05, {"server": 0.5}, [stream, stream], [0.001])


def test_a_steady_door_adds_a_delay_and_no_gap() -> None:
    made = stream_figures(seen([0.01] * 40), Steps(SENT), PACE)
    assert made.delivered == pytest.approx(20.0)
    assert made.cpu_s == pytest.approx(0.5 / 40 * 1000)
    assert made.cores == pytest.approx(0.25)
    assert made.delay_ms == pytest.approx((10.0, 10.0))
    assert made.itl_added_ms == pytest.approx((0.0, 0.0), abs=1e-6)
    assert made.engine_late_p99_ms == pytest.approx(0.0, abs=1e-6)
    assert made.late_p99_ms == pytest.approx(1.0)
    assert made.keeps_up


def test_one_late_token_is_in_the_tail_of_both() -> None:
    delays = [0.01] * 40
    delays[20] = 0.06
    made = stream_figures(seen(delays), Steps(SENT), PACE)
    assert made.delay_ms == pytest.approx((10.0, 60.0))
    assert made.itl_added_ms == pytest.approx((0.0, 50.0), abs=1e-6)


def test_a_door_that_falls_behind_does_not_keep_up() -> None:
    falling = [0.3 * number for number in range(40)]
    made = stream_figures(seen(falling), Steps(SENT), PACE)
    assert made.delivered < 0.5 * made.offered
    assert not made.keeps_up


def test_a_bare_servers_events_are_all_tokens() -> None:
    events = [[at_s] for at_s in (1.0, 2.0, 2.5, 3.0)]
    made = bare_figures(Seen(2.0, 3.0, {"server": 0.1}, events, [0.0]), 2.0)
    assert (made.delivered, made.keeps_up, made.delay_ms) == (2.0, True, None)
    assert not bare_figures(Seen(2.0, 3.0, {"server": 0.1}, events, [0.0]), 3.0).keeps_up


def test_whole_replies_bear_all_of_their_cost() -> None:
    made = whole_figures(Seen(0.0, 4.0, {"server": 1.0}, [[], []], [0.0]), PACE, 50)
    assert (made.delivered, made.cpu_s) == (25.0, 10.0)

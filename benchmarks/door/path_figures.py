"""What one load of the HTTP path says: rates, what a token cost, how long it took through the door."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.door.fake_engine import Pace, Steps
from benchmarks.door.stream_readers import Seen
from headrace.demo.summary import quantile

GROWTH: float = 0.02  # of what was sent: a door that falls behind by more does not keep up


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one window. Rates are tokens per second; `cpu_s` is the server's per 1,000 tokens, `cores` how many it kept
    busy. A delay runs from the engine's sending a step to a token's arrival at the reader, in the same window.

    `itl_added_ms`: a percentile of the readers' gaps less that of the engine's own.
    """

    offered: float
    delivered: float
    cpu_s: float
    cores: float
    late_p99_ms: float  # the readers' own loop
    delay_ms: tuple[float, float] | None = None  # p50, p99; None where nobody told what was sent when
    itl_added_ms: tuple[float, float] | None = None
    engine_late_p99_ms: float | None = None
    keeps_up: bool = True


def bare_figures(seen: Seen, offered: float) -> Figures:
    """Of a server whose events are all tokens, from what was read alone."""
    tokens = sum(len(_within(events, seen)) for events in seen.events_s)
    window_s = seen.end_s - seen.start_s
    return _figures(seen, offered, tokens, keeps_up=tokens / window_s > (1 - GROWTH) * offered)


def stream_figures(seen: Seen, steps: Steps, pace: Pace) -> Figures:
    """Of the door, which begins each stream with a role."""
    arrivals = [events[1:] for events in seen.events_s]
    delivered = sum(len(_within(events, seen)) for events in arrivals)
    sent_s = _within(steps.sent_s, seen)
    behind = len(sent_s) * pace.num_streams - delivered
    delays = [
        at_s - steps.sent_s[number]
        for events in arrivals
        for number, at_s in enumerate(events)
        if seen.start_s <= at_s < seen.end_s
    ]
    gaps = [later - earlier for events in arrivals for earlier, later in pairwise(_within(events, seen))]
    own_gaps = [later - earlier for earlier, later in pairwise(sent_s)]
    late = [at_s - steps.sent_s[0] - number * pace.step_s for number, at_s in enumerate(steps.sent_s)]
    return _figures(
        seen,
        pace.tokens_per_s,
        delivered,
        delay_ms=(_ms(delays, 0.5), _ms(delays, 0.99)),
        itl_added_ms=(_ms(gaps, 0.5) - _ms(own_gaps, 0.5), _ms(gaps, 0.99) - _ms(own_gaps, 0.99)),
        engine_late_p99_ms=_ms(late, 0.99),
        keeps_up=behind <= GROWTH * len(sent_s) * pace.num_streams + pace.num_streams,  # one step is on its way
    )


def whole_figures(seen: Seen, pace: Pace, max_tokens: int) -> Figures:
    """Of replies in one piece, all of their cost on their tokens."""
    return _figures(seen, pace.tokens_per_s, pace.num_streams * max_tokens)


def _figures(
    seen: Seen,
    offered: float,
    delivered: int,
    *,
    delay_ms: tuple[float, float] | None = None,
    itl_added_ms: tuple[float, float] | None = None,
    engine_late_p99_ms: float | None = None,
    keeps_up: bool = True,
) -> Figures:
    window_s, cpu_s = seen.end_s - seen.start_s, seen.cpu_s["server"]
    return Figures(
        offered=offered,
        delivered=delivered / window_s,
        cpu_s=cpu_s / delivered * 1e3 if delivered else float("nan"),
        cores=cpu_s / window_s,
        late_p99_ms=_ms(seen.late_s, 0.99),
        delay_ms=delay_ms,
        itl_added_ms=itl_added_ms,
        engine_late_p99_ms=engine_late_p99_ms,
        keeps_up=keeps_up,
    )


def _within(instants_s: Sequence[float], seen: Seen) -> Sequence[float]:
    """Those of the window; they are in order."""
    return instants_s[bisect_left(instants_s, seen.start_s) : bisect_left(instants_s, seen.end_s)]


def _ms(seconds: Sequence[float], q: float) -> float:
    return quantile(seconds, q) * 1e3

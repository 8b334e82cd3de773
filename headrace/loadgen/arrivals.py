"""When requests are due, in seconds from the start and in order: by a rate or a trace, never by an earlier answer."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator

from core_engine.errors import ConfigurationError
from core_engine.simulation.trace import Trace


class Arrivals(enum.StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"
    TRACE = "trace"


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Without end; the gaps between arrivals are exponential with mean `1 / rate` seconds."""
    rng = random.Random(seed)
    return itertools.accumulate(rng.expovariate(rate) for _ in itertools.count())


def constant(rate: float) -> Iterator[float]:
    """Without end, one every `1 / rate` seconds."""
    return (number / rate for number in itertools.count())


def of_trace(trace: Trace, speed: float) -> Iterator[float]:
    """The trace's own arrivals, `speed` times as fast, to its end.

    Raises:
        ConfigurationError: it has none.
    """
    if not trace.is_timed:
        raise ConfigurationError(f"trace {trace.name} has no arrival times; give --rate, with --arrivals poisson")
    return (row.arrival_s / speed for row in trace.rows if row.arrival_s is not None)


def before(due_s: Iterator[float], end_s: float) -> Iterator[float]:
    """Those that lie before `end_s`."""
    return itertools.takewhile(lambda each_s: each_s < end_s, due_s)

"""A feature reader around another: counts what each read found, and hands a sample of reads to the served log."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client import Counter

from core_engine.contracts import EMPTY, Deadline, FeatureRow, FeatureState, Scalar
from core_engine.metrics import Metrics
from core_engine.readers import FeatureReader
from featurestore.consistency.capture import Asked, Capture, served_row
from featurestore.consistency.served_log import ServedLog
from featurestore.instants import Clock, to_us, utc_now

MAX_KNOWN: Final = 256  # sets of references: a predictor asks for the same ones every time


class SampledReader:
    """`reader` with one read in `1 / rate` logged, drawn by `draw` (from [0, 1)) for each read on its own.

    `capture` knows the views that `reader` serves. Without a `log` reads are counted only.
    """

    def __init__(
        self,
        reader: FeatureReader,
        capture: Capture,
        metrics: Metrics,
        log: ServedLog | None = None,
        rate: float = 0.0,
        draw: Callable[[], float] = random.random,
        clock: Clock = utc_now,
    ) -> None:
        self._reader = reader
        self._capture = capture
        self._known = functools.lru_cache(MAX_KNOWN)(self._prepared)
        self._reads = metrics.feature_view_reads
        self._log = log
        self._rate = rate
        self._draw = draw
        self._clock = clock

    async def read(
        self, refs: Sequence[str], keys: Mapping[str, str], deadline: Deadline, *, inputs: Mapping[str, Scalar] = EMPTY
    ) -> FeatureRow:
        """As the decorated reader's, to which everything is left that can fail."""
        row = await self._reader.read(refs, keys, deadline, inputs=inputs)
        asked, counters = self._known(tuple(refs))
        for ref, by_state in counters.items():
            by_state[row.values[ref].state].inc()
        if self._log is not None and refs and self._draw() < self._rate:
            at_us = to_us(self._clock(), "clock") if row.at_us is None else row.at_us
            self._log.write(functools.partial(served_row, asked, dict(keys), dict(inputs), row, at_us))
        return row

    def _prepared(self, refs: tuple[str, ...]) -> tuple[Asked, dict[str, dict[FeatureState, Counter]]]:
        """The views of `refs`, and by one feature of each the counters: what is stale or missing is so for its row."""
        asked = self._capture.asked(refs)
        return asked, {features[0].ref: self._counters(compiled.view.name) for compiled, features in asked.stored}

    def _counters(self, view: str) -> dict[FeatureState, Counter]:
        words = dict.fromkeys(FeatureState, "fresh")
        words |= {state: state.value for state in (FeatureState.MISSING, FeatureState.STALE)}
        return {state: self._reads.labels(view, word) for state, word in words.items()}

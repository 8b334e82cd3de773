"""The torch scorers that an engine holds, micro-batched between its steps.

Every request that waits for the same scorer is answered by one call over all their rows; interactive before bulk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import structlog

from core_engine.contracts import Pool, ScoreRequest, ScoreResult, Usage
from core_engine.errors import DeadlineExceeded, EngineRefused, HeadraceError, InvalidRequest, UnknownName

log = structlog.get_logger()
MAX_ROWS_PER_REQUEST = 4096
MAX_QUEUED_ROWS = 65_536
MAX_BULK_ROWS = 256  # per call: what bulk may add to the wait of the interactive request behind it


class Scorer(Protocol):
    """A loaded scorer: `core_engine.scoring.torch_scorer` in the product, a plain function's wrapper in tests."""

    @property
    def num_features(self) -> int: ...

    def score(self, features: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    request: ScoreRequest
    arrival_s: float


@dataclass(frozen=True, slots=True)
class ScoreOutcome:
    """How one request ended: its result, or the error that says why not. A call that failed was used all the same."""

    request: ScoreRequest
    result: ScoreResult | HeadraceError
    usage: Usage = field(default_factory=Usage)


class ScorerHost:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._scorers: dict[str, Scorer] = {}
        self._queues: dict[Pool, list[Waiting]] = {pool: [] for pool in Pool}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._scorers))

    @property
    def num_rows(self) -> int:
        return sum(waiting.request.num_rows for queue in self._queues.values() for waiting in queue)

    def put(self, name: str, scorer: Scorer) -> None:
        self._scorers[name] = scorer

    def add(self, request: ScoreRequest) -> None:
        """Queue a request.

        Raises:
            UnknownName: no such scorer here. InvalidRequest: the bytes are not [num_rows, num_features] float32.
            EngineRefused: the queue is at its bound.
        """
        scorer = self._scorers.get(request.scorer)
        if scorer is None:
            held = ", ".join(self.names) or "none"
            raise UnknownName(f"this engine holds no scorer {request.scorer}; it holds {held}", field="scorer")
        _check_size(request, scorer.num_features)
        if self.num_rows + request.num_rows > MAX_QUEUED_ROWS:
            raise EngineRefused(f"the scoring queue is full: {self.num_rows} rows wait")
        self._queues[request.pool].append(Waiting(request, self._clock()))

    def abort(self, attempt_id: str) -> None:
        """Drop a waiting request; one that is not waiting is left alone."""
        for pool, queue in self._queues.items():
            self._queues[pool] = [waiting for waiting in queue if waiting.request.attempt_id != attempt_id]

    def run(self) -> list[ScoreOutcome]:
        """Answer everything interactive that waits, and a bounded number of bulk rows."""
        now = self._clock()
        batch = self._queues[Pool.INTERACTIVE] + self._take_bulk()
        self._queues[Pool.INTERACTIVE] = []
        late = [w for w in batch if w.request.deadline.at_s <= now]
        outcomes = [ScoreOutcome(w.request, DeadlineExceeded("the deadline passed in the scoring queue")) for w in late]
        by_scorer: dict[str, list[Waiting]] = {}
        for waiting in batch:
            if waiting.request.deadline.at_s > now:
                by_scorer.setdefault(waiting.request.scorer, []).append(waiting)
        for name, group in by_scorer.items():
            outcomes += self._score(self._scorers[name], group)
        return outcomes

    def _take_bulk(self) -> list[Waiting]:
        queue, rows, count = self._queues[Pool.BULK], 0, 0
        while count < len(queue) and (count == 0 or rows + queue[count].request.num_rows <= MAX_BULK_ROWS):
            rows += queue[count].request.num_rows
            count += 1
        self._queues[Pool.BULK] = queue[count:]
        return queue[:count]

    def _score(self, scorer: Scorer, group: list[Waiting]) -> list[ScoreOutcome]:
        start = self._clock()
        rows = np.frombuffer(b"".join(w.request.features for w in group), dtype="<f4")
        try:
            scores = scorer.score(rows.reshape(-1, scorer.num_features)).tolist()
        except Exception as error:  # part of the engine loop: a scorer that fails ends its own requests only
            log.exception("scorer_failed", scorer=group[0].request.scorer)
            failure = HeadraceError(f"scorer {group[0].request.scorer} failed: {type(error).__name__}")
            used = _shares(group, self._clock() - start)
            return [ScoreOutcome(w.request, failure, usage) for w, usage in zip(group, used, strict=True)]
        spent = self._clock() - start
        outcomes, first = [], 0
        for waiting, usage in zip(group, _shares(group, spent), strict=True):
            request = waiting.request
            own = tuple(scores[first : first + request.num_rows])
            first += request.num_rows
            result = ScoreResult(own, start - waiting.arrival_s, spent, usage)
            outcomes.append(ScoreOutcome(request, result, usage))
        return outcomes


def _shares(group: list[Waiting], spent_s: float) -> list[Usage]:
    """What each request of one call has used: its rows' share of `spent_s`."""
    num_rows = sum(waiting.request.num_rows for waiting in group)
    return [
        Usage(rows=rows, batch_size=num_rows, device_s=spent_s * rows / num_rows)
        for rows in (waiting.request.num_rows for waiting in group)
    ]


def _check_size(request: ScoreRequest, num_features: int) -> None:
    if not 1 <= request.num_rows <= MAX_ROWS_PER_REQUEST:
        raise InvalidRequest(
            f"num_rows is {request.num_rows}, expected 1 to {MAX_ROWS_PER_REQUEST}",
            field="num_rows",
            value=request.num_rows,
        )
    expected = request.num_rows * num_features * 4
    if len(request.features) != expected:
        raise InvalidRequest(
            f"features hold {len(request.features)} bytes, expected {expected} "
            f"for {request.num_rows} rows of {num_features} float32",
            field="features",
        )

"""The step clock: where one replica's time goes, and the facts of the attempts that used it.

The engine's server tells it what it is doing (`spend`) and how long the model ran (`ran`); both come from clocks read
around the work itself, so that nothing here is what is left over. Every `period_s` and at the end it writes a
`ReplicaFact`; a killed process loses the time since the last one. One thread; it knows no engine and no money.
"""

from __future__ import annotations

import enum
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from core_engine.contracts import GenerateRequest, Monotonic, ScoreRequest, Usage
from core_engine.costs.facts import NOTHING_USED, RUNNING, DeviceFact, Fact, ReplicaFact

PERIOD_S = 1.0


class Spent(enum.Enum):
    """What a second of a replica's life went to."""

    LOADING = "loading"
    BUSY = "busy"
    OVERHEAD = "overhead"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What of a replica is shared: its KV blocks, and the pools' floors of seats."""

    total_blocks: int
    interactive_seats: int
    bulk_seats: int


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ReplicaMeter:
    """Meters one incarnation of `replica`, whose process was started `age_s` ago and loads until `serves`.

    Instants come from the monotonic clock, anchored once: a wall clock that is set does not tear intervals apart.
    """

    def __init__(
        self,
        replica: str,
        kind: str,
        record: Callable[[Fact], None],
        *,
        age_s: float = 0.0,
        period_s: float = PERIOD_S,
        clock: Monotonic = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.incarnation = uuid.uuid4().hex
        self._replica, self._kind, self._record = replica, kind, record
        self._period_s, self._clock = period_s, clock
        self._anchor_s, self._anchor_at = clock(), now()
        self._from_s = self._mark_s = self._anchor_s - age_s
        self._spending: Spent | None = Spent.LOADING
        self._capacity = Capacity(0, 0, 0)
        self._interval = 0
        self._told: dict[str, Usage] = {}  # running attempts: what their facts have said
        self._reset()

    def _reset(self) -> None:
        self._spent_s = dict.fromkeys(Spent, 0.0)
        self._charged_s = self._free_block_s = 0.0

    # -- time

    def serves(self, capacity: Capacity) -> None:
        """Loading is over; its interval is written at once."""
        self._capacity = capacity
        self._lap(None)
        self.close_interval()

    def spend(self, kind: Spent) -> _Span:
        """A context: the time inside goes to `kind`, and not to the span around it."""
        return _Span(self, kind)

    def ran(self, run_s: float, free_block_s: float) -> None:
        """`run_s` of the running overhead span were the model's, with `free_block_s` of KV blocks unused meanwhile."""
        self._spent_s[Spent.OVERHEAD] -= run_s
        self._spent_s[Spent.BUSY] += run_s
        self._free_block_s += free_block_s

    def _lap(self, following: Spent | None) -> None:
        now_s = self._clock()
        if self._spending is not None:
            self._spent_s[self._spending] += now_s - self._mark_s
        self._spending, self._mark_s = following, now_s

    # -- facts

    def attempt(self, request: GenerateRequest | ScoreRequest, usage: Usage, outcome: str) -> None:
        """Write what an attempt has used by now; unless it goes on running, it has left the engine."""
        before = self._told.get(request.attempt_id, NOTHING_USED)
        if outcome == RUNNING:
            if (usage.device_s, usage.kv_block_s) == (before.device_s, before.kv_block_s):
                return
            self._told[request.attempt_id] = usage
        else:
            self._told.pop(request.attempt_id, None)
        predictor, version = _served(request)
        fact = DeviceFact.of(
            usage,
            attempt_id=request.attempt_id,
            pool=request.pool,
            replica=self._replica,
            incarnation=self.incarnation,
            interval=self._interval,
            tenant=request.tenant,
            path=request.path,
            predictor=predictor,
            version=version,
            outcome=outcome,
            finished_at=self._at(self._clock()),
            before=before,
        )
        self._charged_s += fact.interval_device_s
        self._record(fact)

    @property
    def is_due(self) -> bool:
        """The interval is as long as it should get. Tell of the running attempts, then close it."""
        return self._clock() - self._from_s >= self._period_s

    def close_interval(self, *, is_last: bool = False) -> None:
        """Write the interval that ends now and begin the next."""
        self._lap(self._spending)
        self._record(
            ReplicaFact(
                replica=self._replica,
                incarnation=self.incarnation,
                kind=self._kind,
                interval=self._interval,
                from_at=self._at(self._from_s),
                to_at=self._at(self._mark_s),
                is_last=is_last,
                loading_s=self._spent_s[Spent.LOADING],
                busy_s=self._spent_s[Spent.BUSY],
                overhead_s=self._spent_s[Spent.OVERHEAD],
                idle_s=self._spent_s[Spent.IDLE],
                charged_s=self._charged_s,
                total_blocks=self._capacity.total_blocks,
                free_block_s=self._free_block_s,
                interactive_seats=self._capacity.interactive_seats,
                bulk_seats=self._capacity.bulk_seats,
            )
        )
        self._from_s = self._mark_s
        self._interval += 1
        self._reset()

    def _at(self, instant_s: float) -> datetime:
        return self._anchor_at + timedelta(seconds=instant_s - self._anchor_s)


class _Span:
    """Two clock reads; a generator's context costs twice as much, and the engine enters two in every turn."""

    __slots__ = ("_kind", "_meter", "_outer")

    def __init__(self, meter: ReplicaMeter, kind: Spent) -> None:
        self._meter, self._kind = meter, kind
        self._outer: Spent | None = None

    def __enter__(self) -> None:
        self._outer = self._meter._spending
        self._meter._lap(self._kind)

    def __exit__(self, *_: object) -> None:
        self._meter._lap(self._outer)


def _served(request: GenerateRequest | ScoreRequest) -> tuple[str, int]:
    """Predictor and version of a request; a scorer that is no predictor's version counts as version 0 of its name."""
    if isinstance(request, GenerateRequest):
        return request.predictor, request.version
    name, _, version = request.scorer.rpartition(":")
    return (name, int(version)) if name and version.isdecimal() else (request.scorer, 0)

"""Usage facts: what one attempt used, as the process that knows it saw it. Quantities only; money comes at report time.

The caller (a door) writes a `CallerFact`, the engine a `DeviceFact`; a loader joins them on `attempt_id`. The engine
also writes a `ReplicaFact` per interval: where its own time went; a door with a shadow version, what that said beside
live (`ComparisonFact`). Never in a fact: prompts, completions, input or feature values.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from core_engine.contracts import Path, Pool, ReadCost, Reason, Rung, StageTimes, Usage

SCHEMA = 2
RUNNING = "running"  # outcome of an attempt that has not left the engine yet


NOTHING_USED = Usage()


class SpoolHeader(msgspec.Struct, frozen=True, kw_only=True, tag="spool"):
    """First line of every file: whose facts these are."""

    schema: int = SCHEMA
    role: str
    pid: int
    started_at: datetime
    part: int


class CallerFact(msgspec.Struct, frozen=True, kw_only=True, tag="caller"):
    """One attempt as its door saw it. `delivery_key` is the client's own and groups attempts into one delivery.

    `stages` is where a prediction's time went; None of a text, whose times the engine tells.
    """

    attempt_id: str
    delivery_key: str | None
    tenant: str
    path: Path
    predictor: str
    version: int
    rung: Rung
    reason: Reason | None
    feature: ReadCost
    caller_cpu_s: float
    delivered_in_time: bool
    arrived_at: datetime
    answered_at: datetime
    stages: StageTimes | None = None


class ComparisonFact(msgspec.Struct, frozen=True, kw_only=True, tag="comparison"):
    """What a shadow version said of a request that live had answered, beside live's answer; both by their models.

    `attempt_id` is the shadow's own attempt. `difference` is its score less live's. `disagrees`: at the threshold of
    each, they decide differently; None where one declares no threshold.
    """

    attempt_id: str
    predictor: str
    version: int  # live's
    shadow_version: int
    difference: float
    disagrees: bool | None
    compared_at: datetime


class DeviceFact(msgspec.Struct, frozen=True, kw_only=True, tag="device"):
    """One attempt as the engine saw it; written when the attempt leaves the engine, however it ended, and with the
    outcome `running` at the end of every interval in which it used the device.

    Counts and seconds are the attempt's so far. `interval_device_s` and `interval_kv_block_s` are the part of
    `interval` alone: those of an attempt's facts add up to its totals, and those of an interval's to its `charged_s`.
    """

    attempt_id: str
    pool: Pool
    replica: str
    incarnation: str
    interval: int
    tenant: str
    path: Path
    predictor: str
    version: int
    outcome: str  # `running`, a finish reason, "scored", or the code of an error
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    wasted_tokens: int
    rows: int
    batch_size: int
    device_s: float
    kv_block_s: float
    interval_device_s: float
    interval_kv_block_s: float
    finished_at: datetime  # or the instant at which it was still running
    queue_s: float | None = None  # these three as `Usage` has them; None from a release that did not tell
    prefill_s: float | None = None
    decode_s: float | None = None

    @classmethod
    def of(
        cls,
        usage: Usage,
        *,
        attempt_id: str,
        pool: Pool,
        replica: str,
        incarnation: str,
        interval: int,
        tenant: str,
        path: Path,
        predictor: str,
        version: int,
        outcome: str,
        finished_at: datetime,
        before: Usage = NOTHING_USED,
    ) -> DeviceFact:
        """The device's part of `usage`; its feature and caller fields are the caller's to report.

        `before` is what the attempt's earlier facts have said.
        """
        return cls(
            attempt_id=attempt_id,
            pool=pool,
            replica=replica,
            incarnation=incarnation,
            interval=interval,
            tenant=tenant,
            path=path,
            predictor=predictor,
            version=version,
            outcome=outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            computed_tokens=usage.computed_tokens,
            completion_tokens=usage.completion_tokens,
            wasted_tokens=usage.wasted_tokens,
            rows=usage.rows,
            batch_size=usage.batch_size,
            device_s=usage.device_s,
            kv_block_s=usage.kv_block_s,
            interval_device_s=usage.device_s - before.device_s,
            interval_kv_block_s=usage.kv_block_s - before.kv_block_s,
            finished_at=finished_at,
            queue_s=usage.queue_s,
            prefill_s=usage.prefill_s,
            decode_s=usage.decode_s,
        )


class ReplicaFact(msgspec.Struct, frozen=True, kw_only=True, tag="replica"):
    """Where one replica's time went in one interval of its life. Intervals of an incarnation are numbered from 0 and
    join without a hole; the first begins with the process.

    `replica` names the place and stays the same over restarts, `incarnation` is one process in it, `kind` is what the
    price book prices. The four times were measured, each on its own; their sum is near `to_at - from_at`, not equal.
    `charged_s` is what the interval's `DeviceFact`s add up to. Block-seconds are those of the busy time.
    """

    replica: str
    incarnation: str
    kind: str
    interval: int
    from_at: datetime
    to_at: datetime
    is_last: bool  # the process was asked to stop, and did
    loading_s: float
    busy_s: float  # model runs in steps, scorer calls
    overhead_s: float  # schedule, commit, messages
    idle_s: float  # waiting for messages with nothing to do
    charged_s: float
    total_blocks: int
    free_block_s: float
    interactive_seats: int  # the pools' seat floors: idle time is split by them
    bulk_seats: int


Fact: TypeAlias = CallerFact | ComparisonFact | DeviceFact | ReplicaFact

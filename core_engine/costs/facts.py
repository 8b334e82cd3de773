"""Usage facts: what one attempt used, as the process that knows it saw it. Quantities only; money comes at report time.

The caller (a door) writes a `CallerFact`, the engine a `DeviceFact`; a loader joins them on `attempt_id`. Never in a
fact: prompts, completions, input or feature values.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from core_engine.contracts import Path, Pool, ReadCost, Reason, Rung, Usage

SCHEMA = 1


class SpoolHeader(msgspec.Struct, frozen=True, kw_only=True, tag="spool"):
    """First line of every file: whose facts these are."""

    schema: int = SCHEMA
    role: str
    pid: int
    started_at: datetime
    part: int


class CallerFact(msgspec.Struct, frozen=True, kw_only=True, tag="caller"):
    """One attempt as its door saw it. `delivery_key` is the client's own and groups attempts into one delivery."""

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


class DeviceFact(msgspec.Struct, frozen=True, kw_only=True, tag="device"):
    """One attempt as the engine saw it; written when the attempt leaves the engine, however it ended."""

    attempt_id: str
    pool: Pool
    replica: str
    tenant: str
    path: Path
    predictor: str
    version: int
    outcome: str  # a finish reason, "scored", or the code of an error
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    wasted_tokens: int
    rows: int
    batch_size: int
    device_s: float
    kv_block_s: float
    finished_at: datetime

    @classmethod
    def of(
        cls,
        usage: Usage,
        *,
        attempt_id: str,
        pool: Pool,
        replica: str,
        tenant: str,
        path: Path,
        predictor: str,
        version: int,
        outcome: str,
        finished_at: datetime,
    ) -> DeviceFact:
        """The device's part of `usage`; its feature and caller fields are the caller's to report."""
        return cls(
            attempt_id=attempt_id,
            pool=pool,
            replica=replica,
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
            finished_at=finished_at,
        )


Fact: TypeAlias = CallerFact | DeviceFact

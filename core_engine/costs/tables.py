"""The ledger's tables. Quantities only; money is not stored. The loader writes them, `quantities` reads them.

An attempt is one row whichever of its two facts has come; columns of a side that has not are null. What the device
gave is kept apart, by interval of the replica's life (`ledger_charges`): an attempt may run through many. Strings have
no length: a fact that a column cannot hold would stop its spool for ever.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Double, Index
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core_engine.sql_types import UtcDateTime


class Base(DeclarativeBase):
    """Metadata of the ledger."""


class LedgerAttempt(Base):
    """`answered_at` is null where the caller's fact is missing, `finished_at` where the device's is."""

    __tablename__ = "ledger_attempts"
    __table_args__ = (
        Index("ix_ledger_attempts_answered_at", "answered_at"),
        Index("ix_ledger_attempts_finished_at", "finished_at"),
    )

    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    # told by both; the caller's word wins
    tenant: Mapped[str]
    path: Mapped[str]
    predictor: Mapped[str]
    version: Mapped[int]
    # the caller's
    delivery_key: Mapped[str | None]
    rung: Mapped[str | None]
    reason: Mapped[str | None]
    reads: Mapped[int | None]
    read_hits: Mapped[int | None]
    read_bytes: Mapped[int | None] = mapped_column(BigInteger)
    read_round_trips: Mapped[int | None]
    read_cached: Mapped[int | None]
    caller_cpu_s: Mapped[float | None] = mapped_column(Double)
    delivered_in_time: Mapped[bool | None]
    arrived_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    answered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # the device's
    pool: Mapped[str | None]
    replica: Mapped[str | None]
    outcome: Mapped[str | None]
    prompt_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    computed_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    wasted_tokens: Mapped[int | None]
    rows: Mapped[int | None]
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class LedgerComparison(Base):
    """One `ComparisonFact`."""

    __tablename__ = "ledger_comparisons"
    __table_args__ = (Index("ix_ledger_comparisons_predictor", "predictor", "compared_at"),)

    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    predictor: Mapped[str]
    version: Mapped[int]
    shadow_version: Mapped[int]
    difference: Mapped[float] = mapped_column(Double)
    disagrees: Mapped[bool | None]
    compared_at: Mapped[datetime] = mapped_column(UtcDateTime)


class LedgerCharge(Base):
    """What one attempt used of one replica in one interval: seconds of device, block-seconds of KV."""

    __tablename__ = "ledger_charges"

    incarnation: Mapped[str] = mapped_column(primary_key=True)
    interval: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    device_s: Mapped[float] = mapped_column(Double)
    kv_block_s: Mapped[float] = mapped_column(Double)


class LedgerInterval(Base):
    """One `ReplicaFact`. `wall_s` is `to_at - from_at`: what is paid, whatever it was used for."""

    __tablename__ = "ledger_intervals"
    __table_args__ = (
        Index("ix_ledger_intervals_time", "from_at", "to_at"),
        Index("ix_ledger_intervals_replica", "replica", "from_at"),
    )

    incarnation: Mapped[str] = mapped_column(primary_key=True)
    interval: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    replica: Mapped[str]
    kind: Mapped[str]
    from_at: Mapped[datetime] = mapped_column(UtcDateTime)
    to_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_last: Mapped[bool]
    wall_s: Mapped[float] = mapped_column(Double)
    loading_s: Mapped[float] = mapped_column(Double)
    busy_s: Mapped[float] = mapped_column(Double)
    overhead_s: Mapped[float] = mapped_column(Double)
    idle_s: Mapped[float] = mapped_column(Double)
    charged_s: Mapped[float] = mapped_column(Double)
    total_blocks: Mapped[int]
    free_block_s: Mapped[float] = mapped_column(Double)
    interactive_seats: Mapped[int]
    bulk_seats: Mapped[int]


class SpoolPosition(Base):
    """How far a spool file is in the ledger. Moves on in the transaction that takes its facts."""

    __tablename__ = "ledger_spool_positions"

    file: Mapped[str] = mapped_column(primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger)


class SpoolFault(Base):
    """A whole line that is no fact: kept as a place and a reason, so that a report can name it."""

    __tablename__ = "ledger_spool_faults"

    file: Mapped[str] = mapped_column(primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    fault: Mapped[str]

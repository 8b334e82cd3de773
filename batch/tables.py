"""The job contract in SQL: jobs, the runs of each (one fence per run), and one checkpoint per finished unit."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Double, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core_engine.sql_types import UtcDateTime


class Base(DeclarativeBase):
    """Metadata of the batch door."""


class BatchJob(Base):
    """One job. `publish_fence` is that of its first run and never changes: a late job stays late however often it is
    resumed. `fence` is that of its newest run, the only one that may write."""

    __tablename__ = "batch_jobs"

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    predictor: Mapped[str] = mapped_column(String(128))
    version: Mapped[int]
    fingerprint: Mapped[str] = mapped_column(String(64))
    input: Mapped[str] = mapped_column(Text)
    output: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str | None] = mapped_column(Text)
    publish_fence: Mapped[int] = mapped_column(BigInteger)
    fence: Mapped[int] = mapped_column(BigInteger)
    generation: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BatchRun(Base):
    """One runner of one job, from its start on. Fences grow over all jobs of a database."""

    __tablename__ = "batch_runs"

    fence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(String(100))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BatchUnit(Base):
    """The checkpoint of one unit, with its result: `value` is MessagePack; a bad row has `fault` and no value."""

    __tablename__ = "batch_units"

    job_id: Mapped[str] = mapped_column(String(100), primary_key=True)
    unit: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    entity: Mapped[str | None] = mapped_column(Text)
    value: Mapped[bytes | None] = mapped_column(LargeBinary)
    rung: Mapped[str | None] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    fault: Mapped[str | None] = mapped_column(Text)
    latency_ms: Mapped[float] = mapped_column(Double)
    batch_size: Mapped[int] = mapped_column(Integer)

"""The job contract as the database keeps it: who may write (fences), which units are done, and with what result.

Synchronous; the runner calls it from threads. Whatever a run writes is refused once a later run has begun, in the same
transaction. A checkpoint is never changed: what a unit's first result was, it stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from sqlalchemy import Engine, case, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from batch.errors import JobChanged, JobTakenOver
from batch.job import Job
from batch.tables import BatchJob, BatchRun, BatchUnit
from core_engine.contracts import Reason, Rung

PAGE_ROWS = 1_000
ATTEMPTS = 5  # to take a fence, or make a job, that another process took at the same moment


class Status(StrEnum):
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    DONE = "done"  # every unit has its checkpoint and the output is written


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One finished unit. A bad row has a `fault` and no value. Latency and batch size are measured, not output."""

    unit: int
    entity: str | None = None
    value: float | str | None = None
    rung: Rung | None = None
    reason: Reason | None = None
    finish_reason: str | None = None
    fault: str | None = None
    latency_ms: float = 0.0
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One runner's right to write to a job, until a run with a higher fence begins."""

    job_id: str
    fence: int
    publish_fence: int
    created_at: datetime
    status: Status  # as it was found
    is_new: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """What a job's checkpoints add up to. Percentiles are nearest-rank, over good units of all runs."""

    good: int
    bad: int
    entities: int
    p50_ms: float
    p99_ms: float
    batch_sizes: dict[str, int]
    rungs: dict[str, int]


_VALUE: msgspec.msgpack.Decoder[float | str | None] = msgspec.msgpack.Decoder(float | str | None)


class JobStore:
    """Jobs, runs and checkpoints of one database, whose tables exist."""

    def __init__(self, database: Engine, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._now = now

    # -- a run

    def begin(self, job: Job) -> Run:
        """Make the job or take it over, under a fence above every one given out before.

        Raises:
            JobChanged: the id belongs to a job with another fingerprint.
        """
        for attempt in range(ATTEMPTS):
            try:
                with Session(self._database) as session, session.begin():
                    return self._begin(session, job)
            except IntegrityError:  # another process took the same fence or made the same job; look again
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _begin(self, session: Session, job: Job) -> Run:
        fence = self._take_fence(session, job.id)
        held = session.get(BatchJob, job.id)
        if held is None:
            created_at = self._now()
            session.add(_new(job, fence, created_at))
            return Run(job.id, fence, fence, created_at, Status.RUNNING, is_new=True)
        if held.fingerprint != job.fingerprint:
            raise JobChanged(
                f"job {job.id} was begun with another input, predictor version or parameters (fingerprint "
                f"{held.fingerprint[:12]}, now {job.fingerprint[:12]}); give this one an id of its own",
                field="job",
                value=job.id,
                expected="the input that it was begun with, or a new id",
            )
        status = Status(held.status)
        is_done = status is Status.DONE
        self._update(session, job.id, fence, BatchJob.fence < fence, Status.DONE if is_done else Status.RUNNING)
        return Run(job.id, fence, held.publish_fence, held.created_at, status, is_new=False)

    def _take_fence(self, session: Session, job_id: str) -> int:
        """In one statement, so that SQLite takes its write lock before it looks. Never below the wall clock: a database
        that was made anew does not begin under the fences that a store still holds."""
        highest = func.coalesce(func.max(BatchRun.fence), 0) + 1
        clock_ms = literal(int(self._now().timestamp() * 1000))
        fence = case((highest > clock_ms, highest), else_=clock_ms)
        row = select(fence, literal(job_id), literal(self._now(), BatchRun.started_at.type))
        taken = insert(BatchRun).from_select(["fence", "job_id", "started_at"], row).returning(BatchRun.fence)
        return int(session.execute(taken).scalar_one())

    def record(self, run: Run, checkpoints: Sequence[Checkpoint]) -> None:
        """Keep finished units, all or none. Raises `JobTakenOver`."""
        with Session(self._database) as session, session.begin():
            self._update(session, run.job_id, run.fence, BatchJob.fence == run.fence)
            session.execute(insert(BatchUnit), [_row(run.job_id, checkpoint) for checkpoint in checkpoints])

    def check(self, run: Run) -> None:
        """Raises `JobTakenOver` where a later run has begun."""
        with Session(self._database) as session, session.begin():
            self._update(session, run.job_id, run.fence, BatchJob.fence == run.fence)

    def end(self, run: Run, status: Status, detail: str | None = None) -> None:
        """Say how this run ended. Raises `JobTakenOver`."""
        with Session(self._database) as session, session.begin():
            self._update(session, run.job_id, run.fence, BatchJob.fence == run.fence, status, detail)

    def published(self, run: Run, generation: str) -> None:
        """Note under which name the job's predictions are served; the store's pointer is what counts."""
        with Session(self._database) as session, session.begin():
            session.execute(update(BatchJob).where(BatchJob.id == run.job_id).values(generation=generation))

    def _update(
        self,
        session: Session,
        job_id: str,
        fence: int,
        allowed: object,
        status: Status | None = None,
        detail: str | None = None,
    ) -> None:
        values: dict[str, object] = {"fence": fence, "updated_at": self._now()}
        if status is not None:
            values |= {"status": status, "detail": detail}
        done = session.execute(update(BatchJob).where(BatchJob.id == job_id, allowed).values(values))  # type: ignore[arg-type]
        if done.rowcount != 1:  # type: ignore[attr-defined]
            raise JobTakenOver(
                f"job {job_id} was taken over by a later run (this one has fence {fence}); it goes on there, and "
                "nothing more is written here"
            )

    # -- what is there

    def done_units(self, job_id: str, first: int, last: int) -> set[int]:
        """Units from `first` to `last` that have a checkpoint."""
        units = select(BatchUnit.unit).where(BatchUnit.job_id == job_id, BatchUnit.unit.between(first, last))
        with Session(self._database) as session:
            return set(session.scalars(units))

    def num_done(self, job_id: str) -> int:
        with Session(self._database) as session:
            return session.scalar(select(func.count()).where(BatchUnit.job_id == job_id)) or 0

    def pages(self, job_id: str, *, bad: bool = False) -> Iterator[list[Checkpoint]]:
        """Good (or bad) units in order, a page at a time."""
        after = -1
        while True:
            kind = BatchUnit.fault.is_not(None) if bad else BatchUnit.fault.is_(None)
            page = select(BatchUnit).where(BatchUnit.job_id == job_id, BatchUnit.unit > after, kind)
            with Session(self._database) as session:
                rows = [_checkpoint(row) for row in session.scalars(page.order_by(BatchUnit.unit).limit(PAGE_ROWS))]
            if not rows:
                return
            yield rows
            after = rows[-1].unit

    def tally(self, job_id: str) -> Tally:
        good = (BatchUnit.job_id == job_id, BatchUnit.fault.is_(None))
        with Session(self._database) as session:
            num_good = session.scalar(select(func.count()).where(*good)) or 0
            total = session.scalar(select(func.count()).where(BatchUnit.job_id == job_id)) or 0

            def quantile(q: float) -> float:
                ordered = select(BatchUnit.latency_ms).where(*good).order_by(BatchUnit.latency_ms)
                return session.scalar(ordered.offset(max(0, math.ceil(q * num_good) - 1)).limit(1)) or 0.0

            def counted(column: object) -> dict[str, int]:
                rows = session.execute(select(column, func.count()).where(*good).group_by(column).order_by(column))  # type: ignore[call-overload]
                return {str(value): count for value, count in rows}

            return Tally(
                good=num_good,
                bad=total - num_good,
                entities=session.scalar(select(func.count(BatchUnit.entity.distinct())).where(*good)) or 0,
                p50_ms=quantile(0.5),
                p99_ms=quantile(0.99),
                batch_sizes=counted(BatchUnit.batch_size),
                rungs=counted(BatchUnit.rung),
            )

    def jobs(self) -> list[BatchJob]:
        """Every job, the newest first; detached."""
        with Session(self._database, expire_on_commit=False) as session:
            return list(session.scalars(select(BatchJob).order_by(BatchJob.publish_fence.desc())))


def _new(job: Job, fence: int, created_at: datetime) -> BatchJob:
    return BatchJob(
        id=job.id,
        predictor=job.predictor.name,
        version=job.predictor.version,
        fingerprint=job.fingerprint,
        input=str(job.input),
        output=str(job.output),
        status=Status.RUNNING,
        publish_fence=fence,
        fence=fence,
        created_at=created_at,
        updated_at=created_at,
    )


def _row(job_id: str, checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "job_id": job_id,
        "unit": checkpoint.unit,
        "entity": checkpoint.entity,
        "value": None if checkpoint.fault is not None else msgspec.msgpack.encode(checkpoint.value),
        "rung": checkpoint.rung,
        "reason": checkpoint.reason,
        "finish_reason": checkpoint.finish_reason,
        "fault": checkpoint.fault,
        "latency_ms": checkpoint.latency_ms,
        "batch_size": checkpoint.batch_size,
    }


def _checkpoint(row: BatchUnit) -> Checkpoint:
    return Checkpoint(
        unit=row.unit,
        entity=row.entity,
        value=None if row.value is None else _VALUE.decode(row.value),
        rung=None if row.rung is None else Rung(row.rung),
        reason=None if row.reason is None else Reason(row.reason),
        finish_reason=row.finish_reason,
        fault=row.fault,
        latency_ms=row.latency_ms,
        batch_size=row.batch_size,
    )

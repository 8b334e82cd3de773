"""How far each view version is online, kept in SQL: watermark, lease, and the shards of a run that is not finished.

Synchronous; the materializer calls it from threads. Only the holder of the newest lease of a view version changes
anything: whatever a run writes is refused, in the same transaction, once another one holds the lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, Unavailable
from featurestore.instants import Clock, utc_now
from featurestore.registry import Status
from featurestore.tables import FeatureViewRecord, RunRecord, ShardRecord, WatermarkRecord

LEASE: Final = timedelta(seconds=15)  # what a killed run holds up the next one


class ViewBusy(Unavailable):
    """Another process holds the lease of this view version."""

    code = "view_busy"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to change one view version's watermark, until another lease has a higher fence."""

    name: str
    version: int
    fence: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """All rows known at `at` are online; `digest` is that of those rows in the source."""

    at: datetime
    digest: str | None


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The last row of a shard that was written, in the order of writing: by when it was known, then by position."""

    known_us: int
    position: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was begun. `digest` is of the rows known at `as_of`; `cursors` by shard, those that have one."""

    token: str
    kind: str
    as_of: datetime
    since: datetime | None
    num_shards: int
    digest: str
    cursors: Mapping[int, Cursor]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the registry knows of a view version."""

    watermark: Watermark | None
    run: Run | None
    holder: str | None


class Watermarks:
    """The lifecycle tables of one database. `clock` is this machine's: leases are compared against it."""

    def __init__(self, database: Engine, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    def acquire(self, name: str, version: int, holder: str) -> Lease:
        """The lease of a view version, for `holder` (who is shown to others).

        Raises:
            ViewBusy: somebody holds it; the sentence says who and until when.
        """
        now = self._clock()
        self._ensure(name, version)
        is_free = or_(WatermarkRecord.leased_until.is_(None), WatermarkRecord.leased_until <= now)
        taken = {"fence": WatermarkRecord.fence + 1, "holder": holder, "leased_until": now + LEASE}
        with Session(self._database) as session, session.begin():
            row = update(WatermarkRecord).where(*_of(WatermarkRecord, name, version), is_free).values(taken)
            fence = session.execute(row.returning(WatermarkRecord.fence)).scalar_one_or_none()
            if fence is None:
                held = session.get_one(WatermarkRecord, (name, version))
                raise ViewBusy(
                    f"feature view {name} version {version} is being written by {held.holder}, whose lease runs until"
                    f" {held.leased_until:%H:%M:%S} UTC; wait until it is done, or if it is gone, until then"
                )
        return Lease(name, version, fence)

    def renew(self, lease: Lease) -> None:
        """Hold the lease for longer. Raises `ViewBusy` where another one took over."""
        with Session(self._database) as session, session.begin():
            self._hold(session, lease)

    def release(self, lease: Lease) -> None:
        """Give the lease back, where it is still held. What a cancelled thread of its holder still says is refused."""
        mine = (*_of(WatermarkRecord, lease.name, lease.version), WatermarkRecord.fence == lease.fence)
        with Session(self._database) as session, session.begin():
            free = {"fence": WatermarkRecord.fence + 1, "holder": None, "leased_until": None}
            session.execute(update(WatermarkRecord).where(*mine).values(free))

    def begin(self, lease: Lease, run: Run) -> None:
        """Note the run that is under way, instead of any other one. Raises `ViewBusy`."""
        key = {"name": lease.name, "version": lease.version}
        with Session(self._database) as session, session.begin():
            self._hold(session, lease)
            _forget_run(session, lease.name, lease.version)
            plain = {
                field: getattr(run, field) for field in ("token", "kind", "as_of", "since", "num_shards", "digest")
            }
            session.add(RunRecord(**key, **plain))
            session.add_all(_shard(lease, shard, cursor) for shard, cursor in run.cursors.items())

    def save(self, lease: Lease, shard: int, cursor: Cursor) -> None:
        """Note how far a shard is. Raises `ViewBusy`."""
        with Session(self._database) as session, session.begin():
            self._hold(session, lease)
            session.merge(_shard(lease, shard, cursor))

    def finish(self, lease: Lease, watermark: Watermark | None) -> None:
        """The run is done; the watermark moves to `watermark`, if one is given, and never back. Raises `ViewBusy`."""
        with Session(self._database) as session, session.begin():
            self._hold(session, lease)
            _forget_run(session, lease.name, lease.version)
            held = session.get_one(WatermarkRecord, (lease.name, lease.version))
            if watermark is not None and (held.watermark is None or watermark.at >= held.watermark):
                held.watermark, held.digest = watermark.at, watermark.digest

    def forget(self, lease: Lease) -> None:
        """All that is known of how far a deleted version was. Its fences go on. Raises `ViewBusy`."""
        with Session(self._database) as session, session.begin():
            self._hold(session, lease)
            _forget_run(session, lease.name, lease.version)
            held = session.get_one(WatermarkRecord, (lease.name, lease.version))
            held.watermark = held.digest = None

    def check_alive(self, name: str, version: int) -> None:
        """Raises `ConfigurationError` for a registered version that is deleted, or about to be."""
        with Session(self._database) as session:
            record = session.get(FeatureViewRecord, (name, version))
            if record is not None and record.status != Status.REGISTERED:
                raise ConfigurationError(
                    f"feature view {name} version {version} is {record.status}; nothing is written"
                )

    def standing(self, name: str, version: int) -> Standing:
        with Session(self._database) as session:
            held = session.get(WatermarkRecord, (name, version))
            if held is None:
                return Standing(None, None, None)
            watermark = None if held.watermark is None else Watermark(held.watermark, held.digest)
            is_leased = held.leased_until is not None and held.leased_until > self._clock()
            return Standing(watermark, _run(session, name, version), held.holder if is_leased else None)

    def _ensure(self, name: str, version: int) -> None:
        row = WatermarkRecord(name=name, version=version, fence=0, updated_at=self._clock())
        try:
            with Session(self._database) as session, session.begin():
                if session.get(WatermarkRecord, (name, version)) is None:
                    session.add(row)
        except IntegrityError:
            pass  # another process made it between our look and our insert

    def _hold(self, session: Session, lease: Lease) -> None:
        """First in each transaction: it locks the row, so that no other lease begins before the commit."""
        now = self._clock()
        mine = (*_of(WatermarkRecord, lease.name, lease.version), WatermarkRecord.fence == lease.fence)
        held = update(WatermarkRecord).where(*mine).values(leased_until=now + LEASE, updated_at=now)
        if session.execute(held.returning(WatermarkRecord.fence)).scalar_one_or_none() is None:
            raise ViewBusy(
                f"feature view {lease.name} version {lease.version}: another process took over (this one has fence"
                f" {lease.fence}); it goes on there, and nothing more is written here"
            )


def _of(table: type[WatermarkRecord | RunRecord | ShardRecord], name: str, version: int) -> tuple[Any, ...]:
    return (table.name == name, table.version == version)


def _shard(lease: Lease, shard: int, cursor: Cursor) -> ShardRecord:
    return ShardRecord(
        name=lease.name, version=lease.version, shard=shard, known_us=cursor.known_us, position=cursor.position
    )


def _forget_run(session: Session, name: str, version: int) -> None:
    for table in (RunRecord, ShardRecord):
        session.execute(delete(table).where(*_of(table, name, version)))


def _run(session: Session, name: str, version: int) -> Run | None:
    held = session.get(RunRecord, (name, version))
    if held is None:
        return None
    shards = session.scalars(select(ShardRecord).where(*_of(ShardRecord, name, version)))
    cursors = {shard.shard: Cursor(shard.known_us, shard.position) for shard in shards}
    return Run(held.token, held.kind, held.as_of, held.since, held.num_shards, held.digest, cursors)

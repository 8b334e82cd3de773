"""What the ledger knows of a window, in seconds and counts: who used what, and where the replicas' time went.

`report` puts prices on it. An interval that a window cuts through counts in proportion, with everything charged in it,
so that windows side by side add up. Sums are the database's floats, exact rationals from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    case,
    cast,
    distinct,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
)

from core_engine.contracts import Path
from core_engine.costs.facts import RUNNING
from core_engine.costs.prices import seconds
from core_engine.costs.tables import LedgerAttempt, LedgerCharge, LedgerInterval, SpoolFault
from core_engine.errors import HeadraceError, InvalidRequest

DIMENSIONS = ("path", "predictor", "version", "tenant", "pool", "rung")
NOWHERE = "-"  # the value of a dimension that is not known, or not there
UNNAMED = "unnamed"  # the predictor of a request to the base model
Key = tuple[str, ...]


class LedgerEmpty(HeadraceError):
    """There is nothing to report."""

    code = "ledger_empty"


@dataclass(frozen=True, slots=True)
class Window:
    """From `from_at` on, before `to_at`."""

    from_at: datetime
    to_at: datetime

    def __post_init__(self) -> None:
        if self.from_at.tzinfo is None or self.to_at.tzinfo is None:
            raise InvalidRequest("a window's instants need an offset from UTC", field="window")
        if self.from_at >= self.to_at:
            raise InvalidRequest(
                f"the window is empty: from {self.from_at.isoformat()} to {self.to_at.isoformat()}", field="window"
            )

    def overlap(self, from_at: datetime, to_at: datetime) -> Fraction:
        """The share of [from_at, to_at) that lies in this window."""
        inside = seconds(max(from_at, self.from_at), min(to_at, self.to_at))
        return max(Fraction(0), inside / seconds(from_at, to_at))


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Of replicas of `kind`: seconds of the device, and of its whole KV memory."""

    key: Key
    kind: str
    device_s: Fraction
    memory_s: Fraction


@dataclass(frozen=True, slots=True)
class CallerUse:
    key: Key
    reads: int
    caller_cpu_s: Fraction


@dataclass(frozen=True, slots=True)
class ReplicaTime:
    """Of replicas of `kind` with these seat floors: how long they were there, and the measured parts of it.

    `free_memory_s`: seconds of the whole KV memory that nobody held while the device was busy.
    """

    kind: str
    interactive_seats: int
    bulk_seats: int
    wall_s: Fraction
    loading_s: Fraction
    overhead_s: Fraction
    idle_s: Fraction
    free_memory_s: Fraction


@dataclass(frozen=True, slots=True)
class Gap:
    """Time of a replica that no interval tells of. A restart ends in another incarnation; else facts were lost.

    `share` of it lies in the window, and so does that share of `uses`: charges whose own interval never came.
    """

    kind: str
    from_at: datetime
    to_at: datetime
    is_restart: bool
    was_stopped: bool  # on purpose, as its last interval says
    share: Fraction
    uses: tuple[DeviceUse, ...]

    @property
    def length_s(self) -> Fraction:
        return seconds(self.from_at, self.to_at)


@dataclass(frozen=True, slots=True)
class Count:
    """Attempts that ended in a window, the deliveries that they were for, and the attempts that were in time."""

    attempts: int = 0
    deliveries: int = 0
    in_time: int = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """What the ledger lacks: each number is named in the report."""

    without_device: int  # attempts answered by the model, and the engine's fact is not there
    without_caller: int
    unended: int  # were running when their replica last told of them, and no caller has answered for them
    bad_lines: int
    pending_s: Fraction  # device seconds whose interval has not come yet


def known_window(connection: Connection) -> Window:
    """From the first to the last instant that the ledger knows.

    Raises:
        LedgerEmpty: it knows none.
    """
    firsts = [
        connection.scalar(select(func.min(column))) for column in (LedgerInterval.from_at, LedgerAttempt.answered_at)
    ]
    lasts = [
        connection.scalar(select(func.max(column))) for column in (LedgerInterval.to_at, LedgerAttempt.answered_at)
    ]
    known_first, known_last = [f for f in firsts if f], [t for t in lasts if t]
    if not known_first or not known_last:
        raise LedgerEmpty("the ledger is empty; run something, then `headrace cost load`")
    return Window(min(known_first), max(known_last) + timedelta(microseconds=1))


# -- the dimensions


def _dimensions(by: Sequence[str]) -> list[ColumnElement[str]]:
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown or not by or len(set(by)) != len(by):
        raise InvalidRequest(
            f"cannot report by {', '.join(by) or 'nothing'}; expected some of {', '.join(DIMENSIONS)}, each once",
            field="by",
        )
    return [_dimension(name) for name in by]


def _dimension(name: str) -> ColumnElement[str]:
    """In plain text, without parameters: a server takes two of them for two expressions, and refuses the grouping."""
    column = getattr(LedgerAttempt, name)
    if name == "predictor":
        column = func.coalesce(func.nullif(column, literal_column("''")), literal_column(f"'{UNNAMED}'"))
    return func.coalesce(cast(column, String), literal_column(f"'{NOWHERE}'"))


# -- what was used


def device_uses(connection: Connection, window: Window, by: Sequence[str]) -> list[DeviceUse]:
    """Everything charged in the window's intervals, by key and kind of replica."""
    keys, kind = _dimensions(by), LedgerInterval.kind
    memory_s = func.sum(LedgerCharge.kv_block_s / func.nullif(LedgerInterval.total_blocks, 0))
    same = and_(
        LedgerInterval.incarnation == LedgerCharge.incarnation, LedgerInterval.interval == LedgerCharge.interval
    )
    charged = select(kind, func.sum(LedgerCharge.device_s), memory_s, *keys).join_from(
        LedgerCharge, LedgerInterval, same
    )
    uses: list[DeviceUse] = []
    for condition, share in _pieces(connection, window):
        rows = connection.execute(_of_attempts(charged).where(condition).group_by(kind, *keys))
        uses += [DeviceUse(tuple(key), of, share * Fraction(d), share * Fraction(m or 0)) for of, d, m, *key in rows]
    return uses


def _of_attempts(charges: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """With the columns of the attempt; a charge without one, which no fact leaves, would still be counted."""
    return charges.outerjoin(LedgerAttempt, LedgerAttempt.attempt_id == LedgerCharge.attempt_id)


def caller_uses(connection: Connection, window: Window, by: Sequence[str]) -> list[CallerUse]:
    """Feature reads and CPU seconds of the callers that answered in the window."""
    keys = _dimensions(by)
    answered = and_(LedgerAttempt.answered_at >= window.from_at, LedgerAttempt.answered_at < window.to_at)
    used = select(func.sum(LedgerAttempt.reads), func.sum(LedgerAttempt.caller_cpu_s), *keys).where(answered)
    rows = connection.execute(used.group_by(*keys))
    return [CallerUse(tuple(key), reads or 0, Fraction(cpu_s or 0)) for reads, cpu_s, *key in rows]


def counts(connection: Connection, window: Window, by: Sequence[str]) -> tuple[dict[Key, Count], Count]:
    """Counts by key, and of the whole window. Attempts with one delivery key of one tenant are one delivery.

    An attempt of a shadow version is for nobody: it is no delivery.
    """
    delivery = case(
        (LedgerAttempt.path == Path.SHADOW.value, null()),
        (LedgerAttempt.delivery_key.is_(None), "attempt " + LedgerAttempt.attempt_id),
        else_="key " + LedgerAttempt.tenant + " " + LedgerAttempt.delivery_key,
    )
    in_time = func.sum(case((LedgerAttempt.delivered_in_time.is_(True), 1), else_=0))
    keys = _dimensions(by)
    counted = select(func.count(), func.count(distinct(delivery)), in_time, *keys).where(_ended(window))
    by_key = {tuple(key): Count(a, d, t) for a, d, t, *key in connection.execute(counted.group_by(*keys))}
    attempts, deliveries, timely = connection.execute(
        select(func.count(), func.count(distinct(delivery)), in_time).where(_ended(window))
    ).one()
    return by_key, Count(attempts, deliveries, timely or 0)


def _ended(window: Window) -> ColumnElement[bool]:
    ended_at = func.coalesce(LedgerAttempt.answered_at, LedgerAttempt.finished_at)
    has_ended = or_(LedgerAttempt.answered_at.is_not(None), LedgerAttempt.outcome != RUNNING)
    return and_(has_ended, ended_at >= window.from_at, ended_at < window.to_at)


# -- where the replicas' time went


def replica_times(connection: Connection, window: Window) -> list[ReplicaTime]:
    """The window's intervals, by kind and seat floors."""
    # without blocks, nobody can hold any: all of the memory's share is unused
    blocks = func.nullif(LedgerInterval.total_blocks, 0)
    free_s = func.sum(func.coalesce(LedgerInterval.free_block_s / blocks, LedgerInterval.busy_s))
    measured = (LedgerInterval.wall_s, LedgerInterval.loading_s, LedgerInterval.overhead_s, LedgerInterval.idle_s)
    groups = (LedgerInterval.kind, LedgerInterval.interactive_seats, LedgerInterval.bulk_seats)
    times: list[ReplicaTime] = []
    for condition, share in _pieces(connection, window):
        rows = connection.execute(select(*groups, *map(func.sum, measured), free_s).where(condition).group_by(*groups))
        for kind, interactive, bulk, *spent in rows:
            times.append(ReplicaTime(kind, interactive, bulk, *(share * Fraction(value) for value in spent)))
    return times


def _pieces(connection: Connection, window: Window) -> Iterator[tuple[ColumnElement[bool], Fraction]]:
    """Conditions on intervals that together select the window, each with the share of them that lies in it."""
    begins = and_(LedgerInterval.from_at >= window.from_at, LedgerInterval.from_at < window.to_at)
    whole = and_(begins, LedgerInterval.to_at <= window.to_at)
    yield whole, Fraction(1)
    touched = and_(LedgerInterval.from_at < window.to_at, LedgerInterval.to_at > window.from_at)
    columns = (LedgerInterval.incarnation, LedgerInterval.interval, LedgerInterval.from_at, LedgerInterval.to_at)
    for incarnation, interval, from_at, to_at in connection.execute(select(*columns).where(touched, not_(whole))).all():
        this = and_(LedgerInterval.incarnation == incarnation, LedgerInterval.interval == interval)
        yield this, window.overlap(from_at, to_at)


def gaps(connection: Connection, window: Window, by: Sequence[str]) -> list[Gap]:
    """Where a replica's intervals leave time out, of the window."""
    return [
        Gap(
            row.kind,
            row.gone_at,
            row.back_at,
            row.next_incarnation != row.incarnation,
            row.is_last,
            share := window.overlap(row.gone_at, row.back_at),
            tuple(_charged_in_gap(connection, by, row, share)),
        )
        for row in _holes(connection)
        if row.gone_at < window.to_at and row.back_at > window.from_at
    ]


def _holes(connection: Connection) -> list[Any]:
    """Each interval of a replica that the next one does not join, with the next one."""

    def following(column: Any) -> ColumnElement[Any]:
        order = (LedgerInterval.from_at, LedgerInterval.interval)
        return func.lead(column, type_=column.type).over(partition_by=LedgerInterval.replica, order_by=order)

    each = select(
        LedgerInterval.kind,
        LedgerInterval.incarnation,
        LedgerInterval.interval,
        LedgerInterval.total_blocks,
        LedgerInterval.is_last,
        LedgerInterval.to_at.label("gone_at"),
        following(LedgerInterval.from_at).label("back_at"),
        following(LedgerInterval.incarnation).label("next_incarnation"),
        following(LedgerInterval.interval).label("next_interval"),
    ).subquery()
    return list(connection.execute(select(each).where(each.c.back_at > each.c.gone_at)))


def _charged_in_gap(connection: Connection, by: Sequence[str], hole: Any, share: Fraction) -> Iterator[DeviceUse]:
    after = and_(LedgerCharge.incarnation == hole.incarnation, LedgerCharge.interval > hole.interval)
    if hole.next_incarnation == hole.incarnation:
        after = and_(after, LedgerCharge.interval < hole.next_interval)
    keys = _dimensions(by)
    sums = select(func.sum(LedgerCharge.device_s), func.sum(LedgerCharge.kv_block_s), *keys).select_from(LedgerCharge)
    for device_s, kv_block_s, *key in connection.execute(_of_attempts(sums).where(after).group_by(*keys)):
        memory_s = Fraction(kv_block_s) / hole.total_blocks if hole.total_blocks else Fraction(0)
        yield DeviceUse(tuple(key), hole.kind, share * Fraction(device_s), share * memory_s)


# -- what is missing


def missing(connection: Connection, window: Window) -> Missing:
    """What a reader of the report must know of the facts behind it."""

    def number(*conditions: ColumnElement[bool]) -> int:
        return connection.scalar(select(func.count()).select_from(LedgerAttempt).where(*conditions)) or 0

    no_caller, no_device = LedgerAttempt.answered_at.is_(None), LedgerAttempt.finished_at.is_(None)
    seen = and_(LedgerAttempt.finished_at >= window.from_at, LedgerAttempt.finished_at < window.to_at)
    return Missing(
        without_device=number(_ended(window), no_device, LedgerAttempt.rung == "model"),
        without_caller=number(_ended(window), no_caller),
        unended=number(seen, no_caller, LedgerAttempt.outcome == RUNNING),
        bad_lines=connection.scalar(select(func.count()).select_from(SpoolFault)) or 0,
        pending_s=_pending_s(connection),
    )


def _pending_s(connection: Connection) -> Fraction:
    restarted = {hole.incarnation for hole in _holes(connection) if hole.next_incarnation != hole.incarnation}
    newest = func.max(LedgerInterval.interval).label("interval")
    last = select(LedgerInterval.incarnation, newest).group_by(LedgerInterval.incarnation).subquery()
    charged = select(func.sum(LedgerCharge.device_s)).outerjoin(last, last.c.incarnation == LedgerCharge.incarnation)
    ahead = LedgerCharge.interval > func.coalesce(last.c.interval, -1)
    return Fraction(connection.scalar(charged.where(ahead, LedgerCharge.incarnation.not_in(restarted))) or 0)

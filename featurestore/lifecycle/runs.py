"""What the next run of a view has to do: everything, what became known since, or a day of the past; and where an
unfinished one goes on. Pure: the registry's and the store's word in, a plan out.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from featurestore.lifecycle.marks import Held
from featurestore.lifecycle.watermarks import Cursor, Run, Standing

DigestAt: TypeAlias = Callable[[datetime], str]


class Kind(enum.StrEnum):
    FULL = "full"
    INCREMENTAL = "incremental"
    REBUILD = "rebuild"  # of the past: the watermark stays where it is


@dataclass(frozen=True, slots=True)
class Plan:
    """`run` is to be done because `why`; its cursors are those of the unfinished run that it goes on with."""

    run: Run
    why: str

    @property
    def is_resumed(self) -> bool:
        return bool(self.run.cursors)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run was asked for. `is_full`: whatever the watermark says."""

    as_of: datetime
    num_shards: int
    is_full: bool = False


def plan(wanted: Wanted, standing: Standing, held: Held, digest_at: DigestAt) -> Plan:
    """`digest_at` is that of the history as it is now, for the rows known at an instant."""
    kind, since, why = _kind(wanted, standing, held, digest_at)
    run = standing.run
    if run is None or not _goes_on(run, kind, since, wanted, digest_at):
        run = Run(uuid.uuid4().hex, kind, wanted.as_of, since, wanted.num_shards, "", {})
    cursors = {shard: cursor for shard in run.cursors if (cursor := _lesser(run, held, shard)) is not None}
    digest = digest_at(wanted.as_of)
    return Plan(Run(run.token, kind, wanted.as_of, since, wanted.num_shards, digest, cursors), why)


def _kind(wanted: Wanted, standing: Standing, held: Held, digest_at: DigestAt) -> tuple[Kind, datetime | None, str]:
    watermark = standing.watermark
    if watermark is None:
        return Kind.FULL, None, "it was never materialized to the end"
    if wanted.as_of < watermark.at:
        return Kind.REBUILD, None, f"the past, before the watermark {watermark.at:%Y-%m-%d %H:%M:%S} UTC"
    if wanted.is_full:
        return Kind.FULL, None, "it was asked for"
    if held.watermark is None:
        return Kind.FULL, None, "the online store has lost what it held"
    if held.watermark != watermark.at:
        return Kind.FULL, None, f"the online store holds it as at {held.watermark:%Y-%m-%d %H:%M:%S} UTC"
    if watermark.digest != digest_at(watermark.at):
        return Kind.FULL, None, "rows that count as known at the watermark have come, gone or moved in the source"
    return Kind.INCREMENTAL, watermark.at, f"since the watermark {watermark.at:%Y-%m-%d %H:%M:%S} UTC"


def _goes_on(run: Run, kind: Kind, since: datetime | None, wanted: Wanted, digest_at: DigestAt) -> bool:
    """Whether the cursors of an unfinished run hold for this one: the same rows in the same places and shards, and
    nothing wanted that was not known to it, but for what became known later."""
    is_same = (run.kind, run.since, run.num_shards) == (kind, since, wanted.num_shards)
    is_reached = wanted.as_of == run.as_of or (kind is not Kind.REBUILD and wanted.as_of > run.as_of)
    return is_same and is_reached and run.digest == digest_at(run.as_of)


def _lesser(run: Run, held: Held, shard: int) -> Cursor | None:
    """How far a shard is by both words; None where the store has none."""
    mark = held.cursors.get((run.token, shard))
    return None if mark is None else min(mark, run.cursors[shard])

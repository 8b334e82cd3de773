"""Whether one view version is well: its source, how far and how wholly it is online, and what it takes there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
from redis.asyncio import Redis

from core_engine.errors import HeadraceError, StoreUnavailable
from featurestore.catalog import CompiledView, compile_view
from featurestore.codec import UnreadablePayload
from featurestore.definitions import FeatureView
from featurestore.instants import Clock, duration_us, to_us, utc_now
from featurestore.keys import late_key
from featurestore.lifecycle.checks import Check, Health, ok, problem, warning
from featurestore.lifecycle.watermarks import Standing
from featurestore.offline.source import NO_SHIFT, read_source
from featurestore.offline.source_schema import source_drift
from featurestore.offline.timeline import newest_positions
from featurestore.online.fetched import Stored, StoredPayload
from featurestore.online.server_functions import pipelined
from featurestore.online.store import OnlineStore

SOURCE: Final = "source"
SAMPLE: Final = 200  # entities of the source that are looked for online
PAUSE_S: Final = 0.001  # between two looks at a thousand keys


@dataclass(frozen=True, slots=True)
class Patient:
    """A view version and where it should be found. `shift` is added to both clocks of its source."""

    view: FeatureView
    client: Redis
    retention_s: float
    shift: timedelta = NO_SHIFT

    @property
    def id(self) -> str:
        return f"{self.view.name}:{self.view.version}"


async def view_checks(patient: Patient, standing: Standing, clock: Clock = utc_now) -> list[Check]:
    """Every check of one view. A source or a store that is away is a finding; what needs neither is checked on."""
    found = await asyncio.to_thread(lambda: list(_source(patient)))
    found.append(_watermark(patient, standing, clock()))
    is_readable = all(check.health is not Health.PROBLEM for check in found if check.name == SOURCE)
    for check in (*((_online,) if is_readable else ()), _memory, *((_late,) if patient.view.window else ())):
        try:
            found += [each async for each in check(patient, clock())]
        except HeadraceError as error:
            name = check.__name__.strip("_")
            advice = "see what is said of redis" if isinstance(error, StoreUnavailable) else "see what is said of it"
            found.append(problem(patient.id, name, str(error), advice))
    return found


def _source(patient: Patient) -> Iterator[Check]:
    try:
        drift = source_drift(patient.view)
    except HeadraceError as error:
        yield problem(patient.id, SOURCE, str(error), "repair the source, or declare a new version that fits it")
        return
    yield ok(patient.id, SOURCE, f"{patient.view.source.path} fits the schema")
    if drift.defaulted:
        advice = "their defaults are served: add the columns, if that is not meant"
        yield warning(patient.id, "lacking columns", ", ".join(drift.defaulted), advice)
    if drift.undeclared:
        advice = "nobody reads them: declare a new version with them, or drop them"
        yield warning(patient.id, "extra columns", ", ".join(drift.undeclared), advice)


def _watermark(patient: Patient, standing: Standing, now: datetime) -> Check:
    ttl_s, advice = patient.view.ttl_s, f"headrace features materialize {patient.id}"
    if standing.watermark is None:
        return warning(patient.id, "watermark", "never materialized by this registry", advice)
    age_s = (now - standing.watermark.at).total_seconds()
    found = f"{standing.watermark.at:%Y-%m-%d %H:%M:%S} UTC, {age_s:.0f} s ago; TTL {ttl_s:.0f} s"
    if standing.holder is not None:
        found += f"; being written by {standing.holder}"
    if age_s > ttl_s:
        return problem(patient.id, "watermark", found, f"what nothing else writes is stale: {advice}")
    if age_s > ttl_s / 2:
        return warning(patient.id, "watermark", found, f"materialize at least twice per TTL: {advice}")
    return ok(patient.id, "watermark", found)


async def _online(patient: Patient, now: datetime) -> AsyncIterator[Check]:
    """Entities of the source that are not expired, spread over it, looked for in the store."""
    view = patient.view
    keys = await asyncio.to_thread(_sample, patient, to_us(now, "clock"))
    if not keys:
        yield warning(patient.id, "online", "the source has no row that is young enough to be online", "fill it")
        return
    store = OnlineStore(patient.client, [view], patient.retention_s)
    rows = (await store.fetch([(view, key) for key in keys])).rows
    num_found = sum(row is not None for row in rows)
    found = f"{num_found} of {len(keys)} sampled entities of the source"
    if num_found == len(keys):
        yield ok(patient.id, "online", found)
    else:
        make = warning if num_found else problem
        lacking = next(key for key, row in zip(keys, rows, strict=True) if row is None)
        advice = f"such as {lacking!r} is not there: headrace features materialize {patient.id} --full"
        yield make(patient.id, "online", found, advice)
    yield _readable(patient, keys, rows)


def _readable(patient: Patient, keys: list[str], rows: list[Stored]) -> Check:
    compiled = compile_view(patient.view)
    bad = [key for key, row in zip(keys, rows, strict=True) if not _is_readable(compiled, row)]
    if bad:
        advice = "written by another release or by hand: delete the keys, then materialize with --full"
        return problem(patient.id, "readable", f"{len(bad)} of {len(rows)} are not, such as {bad[0]!r}", advice)
    return ok(patient.id, "readable", f"{sum(row is not None for row in rows)} sampled")


def _is_readable(compiled: CompiledView, row: Stored) -> bool:
    if isinstance(row, StoredPayload):
        try:
            compiled.codec.decode(row.payload)
        except UnreadablePayload:
            return False
    return not isinstance(row, UnreadablePayload)


async def _memory(patient: Patient, now: datetime) -> AsyncIterator[Check]:
    taken = await OnlineStore(patient.client, [patient.view], patient.retention_s).memory(patient.view, PAUSE_S)
    per_entity = f"{taken.bytes_per_entity:.0f} bytes each" if taken.entities else "none"
    yield ok(patient.id, "memory", f"{taken.entities} entities, {per_entity}, {taken.bytes} bytes in all")


async def _late(patient: Patient, now: datetime) -> AsyncIterator[Check]:
    [num_late] = await pipelined(patient.client, [("XLEN", late_key(patient.view))])
    windows = OnlineStore(patient.client, [patient.view], patient.retention_s).windows
    newest = await windows.late_events(patient.view.name, 1)
    if not newest:
        yield ok(patient.id, "late events", "none")
        return
    event = newest[0].event
    found = f"{num_late} kept aside; the last of {event.key!r} at {event.event_time:%Y-%m-%d %H:%M:%S} UTC"
    advice = "they are in no window: declare a longer grace_s in a new version, or backfill"
    yield warning(patient.id, "late events", found, advice)


def _sample(patient: Patient, now_us: int) -> list[str]:
    source = read_source(patient.view, [], patient.shift)
    positions = newest_positions(source, now_us)
    oldest_us = now_us - duration_us(patient.view.ttl_s + patient.retention_s)
    event_us = source.event_us.to_numpy(zero_copy_only=False)[positions]
    living = positions[event_us > oldest_us]
    spread = np.linspace(0, max(0, len(living) - 1), min(SAMPLE, len(living))).astype(np.int64)
    keys: list[str] = source.keys.take(pa.array(living[spread])).to_pylist()
    return keys

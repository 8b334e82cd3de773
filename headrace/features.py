"""Composition root of `headrace features`: a repository, the registry and the online store in, reports out.

It prints nothing; `features_show` does. Times of day are UTC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from redis.asyncio import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from core_engine.contracts import Deadline, FeatureRow
from core_engine.errors import ConfigurationError, HeadraceError
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.readers import FeatureReader
from core_engine.settings import Settings
from featurestore.definitions import FeatureView
from featurestore.instants import utc_now
from featurestore.lifecycle import changes
from featurestore.lifecycle.changes import Change
from featurestore.lifecycle.checks import Check, Health, warning
from featurestore.lifecycle.deletion import SCAN_COUNT, delete_view, remove_keys
from featurestore.lifecycle.materialization import Materializer, Options, RunReport
from featurestore.lifecycle.pace import pace
from featurestore.lifecycle.server_checks import REACHABLE, server_checks, unknown_views
from featurestore.lifecycle.view_checks import Patient, view_checks
from featurestore.lifecycle.watermarks import Standing, Watermarks
from featurestore.offline.reader import AsOfFeatureReader
from featurestore.offline.store import OfflineStore
from featurestore.on_demand.declaration import OnDemandView
from featurestore.online.connection import connect
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore
from featurestore.registry import (
    Declared,
    Status,
    find_view,
    load_on_demand_views,
    load_views,
    set_status,
    unfinished_deletions,
)
from featurestore.repository import FeatureRepository, load_repository
from featurestore.windows.history import Backfilled, backfill_window
from headrace.migrations import upgrade

OnProgress: TypeAlias = Callable[[int, int, str], None]  # done, of how many, what


@dataclass(frozen=True, slots=True)
class Registered:
    """A view version and how far it is."""

    view: FeatureView
    standing: Standing


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one view of several: its report, or why there is none."""

    view: str
    report: RunReport | None
    error: str | None = None


@contextmanager
def registry(settings: Settings) -> Iterator[Engine]:
    """The database, at its newest revision."""
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    try:
        yield database
    finally:
        database.dispose()


@asynccontextmanager
async def online(settings: Settings) -> AsyncIterator[Redis]:
    client = connect(settings.redis)
    try:
        yield client
    finally:
        await client.aclose()


# -- declarations


def planned(settings: Settings, path: str) -> tuple[FeatureRepository, list[Change]]:
    """The repository at `path` (`package.module:ATTRIBUTE`) and what applying it would change; changes nothing."""
    repository = load_repository(path)
    with registry(settings) as database, Session(database) as session:
        return repository, changes.changes(session, repository)


def apply(settings: Settings, repository: FeatureRepository) -> None:
    """Register all of it, or nothing. Raises `ConfigurationError` with every refusal."""
    with registry(settings) as database, Session(database) as session, session.begin():
        changes.apply(session, repository)


def registered(settings: Settings) -> list[Registered]:
    """Every registered view version, by name and version."""
    with registry(settings) as database:
        watermarks = Watermarks(database)
        with Session(database) as session:
            views = load_views(session)
        return [Registered(view, watermarks.standing(view.name, view.version)) for view in views]


def described(settings: Settings, asked: str) -> Registered:
    with registry(settings) as database:
        view = _find(database, asked)
        return Registered(view, Watermarks(database).standing(view.name, view.version))


def _find(database: Engine, asked: str) -> FeatureView:
    """`name`, of which the newest version is meant, or `name:version`."""
    name, _, version = asked.partition(":")
    if version and not version.isdecimal():
        raise ConfigurationError(f"feature view {asked!r}: expected VIEW or VIEW:VERSION")
    with Session(database) as session:
        return find_view(session, name, int(version) if version else None)


# -- values


async def materialize(
    settings: Settings, asked: Sequence[str], options: Options, on_progress: OnProgress
) -> list[Outcome]:
    """Each view in its turn; all of them, by their newest versions, where none is named. One that fails is told, and
    the others are brought online all the same."""
    with registry(settings) as database:
        views = [_find(database, name) for name in asked] if asked else _newest(database)
        async with online(settings) as client:
            watermarks, outcomes = Watermarks(database), []
            for view in views:
                store = OnlineStore(client, [view], settings.features.retention_s)
                outcomes.append(await _one(Materializer(client, store, watermarks), view, options, on_progress))
            return outcomes


async def _one(materializer: Materializer, view: FeatureView, options: Options, on_progress: OnProgress) -> Outcome:
    name = f"{view.name}:{view.version}"
    try:
        report = await materializer.run(view, options, lambda done, total: on_progress(done, total, name))
    except HeadraceError as error:
        return Outcome(name, None, str(error))
    return Outcome(name, report)


def _newest(database: Engine) -> list[FeatureView]:
    with Session(database) as session:
        return list({view.name: view for view in load_views(session)}.values())  # by version: the newest stays


def backfill(settings: Settings, asked: str, on_progress: Callable[[int, int], None]) -> Backfilled:
    """Make a windowed view's history from its events. Raises `ConfigurationError` for a view without such."""
    with registry(settings) as database:
        view = _find(database, asked)
    return backfill_window(view, on_progress)


async def get(settings: Settings, asked: str, key: str, options: Options) -> FeatureRow:
    """All features of one entity: as a door would read them now, or as they were known at `options.as_of`."""
    with registry(settings) as database:
        view = _find(database, asked)
    refs = [f"{view.name}.{field.name}" for field in view.schema]
    async with online(settings) as client:
        reader: FeatureReader = (
            OnlineFeatureReader(OnlineStore(client, [view], settings.features.retention_s), [view])
            if options.as_of is None
            else AsOfFeatureReader(OfflineStore([view], options.shift), options.as_of)
        )
        return await reader.read(refs, {view.entity: key}, Deadline.never())


# -- deletion


async def delete(
    settings: Settings,
    name: str,
    version: int,
    keys_per_second: float | None,
    on_progress: Callable[[int, int], None],
    *,
    is_unregistered: bool = False,
) -> int:
    """Delete a version of a view or on-demand view that no live predictor reads; how many keys were removed.

    With `is_unregistered`, the keys of one that this registry does not know.

    Raises:
        ConfigurationError: it is in use, or it is registered after all.
    """
    rate = pace(keys_per_second, SCAN_COUNT)
    with registry(settings) as database:
        async with online(settings) as client:
            if is_unregistered:
                await asyncio.to_thread(_check_unregistered, database, name, version)
                return await remove_keys(client, name, version, rate, on_progress)
            await asyncio.to_thread(_check_unused, database, name, version)
            if await asyncio.to_thread(_deleted_on_demand, database, name, version):
                return 0
            return await delete_view(client, database, name, version, rate, on_progress)


def _check_unregistered(database: Engine, name: str, version: int) -> None:
    with Session(database) as session:
        if any((view.name, view.version) == (name, version) for view in load_views(session)):
            raise ConfigurationError(f"feature view {name} version {version} is registered; leave out --unregistered")


def _check_unused(database: Engine, name: str, version: int) -> None:
    """A reference names no version: what serves it is the newest."""
    with Session(database) as session:
        views: list[Declared] = [*load_views(session), *load_on_demand_views(session)]
        newest = max((view.version for view in views if view.name == name), default=None)
        readers = _readers_of(name, Registry(database).view().live(), _operands(session))
    if version == newest and readers:
        raise ConfigurationError(
            f"feature view {name} version {version} is read by {', '.join(readers)}, which are live; point their"
            " aliases at versions that do not read it (headrace predictors alias), or register a newer version"
        )


def _deleted_on_demand(database: Engine, name: str, version: int) -> bool:
    """Whether it was an on-demand view, of which nothing is stored: its registration is all that goes."""
    with Session(database) as session, session.begin():
        is_one = any((view.name, view.version) == (name, version) for view in load_on_demand_views(session))
        if is_one:
            set_status(session, name, version, Status.DELETED, OnDemandView)
        return is_one


def _operands(session: Session) -> dict[str, set[str]]:
    """By reference of each on-demand feature, the stored or computed ones that it is made from."""
    views = load_on_demand_views(session)  # by version: of two, the newer one's operands stay
    return {f"{view.name}.{feature.name}": set(feature.transform.of) for view in views for feature in view.features}


def _readers_of(name: str, live: Sequence[Predictor], operands: dict[str, set[str]]) -> list[str]:
    return [each.id for each in live if name in _views_read([use.ref for use in each.features], operands)]


def _views_read(refs: Sequence[str], operands: dict[str, set[str]]) -> set[str]:
    """The views behind some references, those that computed features are made from included."""
    seen: set[str] = set()
    waiting = list(refs)
    while waiting:
        view, _, feature = waiting.pop().partition(".")
        ref = f"{view.partition('@')[0]}.{feature}"  # by whichever entity of the request it is read
        if ref not in seen:
            seen.add(ref)
            waiting += operands.get(ref, ())
    return {ref.partition(".")[0] for ref in seen}


# -- health


async def examine(settings: Settings, options: Options) -> list[Check]:
    """Every check of the store and of each registered view version. Raises nothing for what is merely unwell."""
    with registry(settings) as database:
        async with online(settings) as client:
            found = await server_checks(client)
            with Session(database) as session:
                views, leaving = load_views(session), unfinished_deletions(session)
            found += [_unfinished(view) for view in leaving]
            if any(check.name == REACHABLE and check.health is Health.OK for check in found):
                known = [(view.name, view.version) for view in (*views, *leaving)]
                found += await unknown_views(client, known)
            watermarks = Watermarks(database)
            for view in views:
                patient = Patient(view, client, settings.features.retention_s, options.shift)
                found += await view_checks(patient, watermarks.standing(view.name, view.version))
            return found


def _unfinished(view: FeatureView) -> Check:
    advice = f"headrace features delete {view.name} --version {view.version}"
    return warning(f"{view.name}:{view.version}", "deletion", "not finished", advice)


def options_of(
    as_of: datetime | None, rows_per_second: float | None, num_shards: int, shift_days: int, *, is_full: bool
) -> Options:
    """What the command line says, checked. Raises `ConfigurationError` for an instant that is still to come."""
    if as_of is not None and as_of > utc_now():
        raise ConfigurationError(f"--as-of {as_of.isoformat()} is still to come; nothing is known as at then")
    return Options(as_of, rows_per_second, num_shards, is_full, timedelta(days=shift_days))

"""Composition root of the commands that move a predictor's aliases: what is checked before traffic goes to a version.

A version is served only if its features can be given, the running engine holds its scorer, and, for a canary, if it
takes the requests that live takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from core_engine.errors import ConfigurationError, HeadraceError, Unavailable
from core_engine.llm.client import EngineClient
from core_engine.predictors.alias_history import AliasMove, Cause, version_before
from core_engine.predictors.declaration import LMGenerate, Predictor, TorchScorer
from core_engine.predictors.registry import CANARY, LIVE, SHADOW, Registry, RegistryView
from core_engine.predictors.tables import open_database
from core_engine.predictors.traffic import input_faults
from core_engine.settings import Settings
from headrace.feature_checks import check_features
from headrace.migrations import upgrade

ENGINE_S = 3.0  # how long an engine may take to answer; one that runs says hello within a heartbeat
SERVED = (LIVE, CANARY, SHADOW)


@contextmanager
def registered(settings: Settings) -> Iterator[tuple[Engine, Registry]]:
    """The database, brought to the newest revision, and the registry in it."""
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    try:
        yield database, Registry(database)
    finally:
        database.dispose()


def point(
    settings: Settings, name: str, alias: str, version: int, *, percent: float | None = None, force: bool = False
) -> None:
    """Point an alias at a version that can be served. `force`: although no engine runs.

    Raises:
        UnknownName: no such predictor or version. InvalidRequest: a percentage that cannot be.
        ConfigurationError: the version cannot be served under that alias; one sentence with the reason.
    """
    with registered(settings) as (database, registry):
        _check(settings, database, registry.view(), registry.resolve(name, version=version), alias, force=force)
        registry.set_alias(name, alias, version, percent=percent)


def roll_back(settings: Settings, name: str, *, force: bool = False) -> list[str]:
    """Point live at the version before; lines that say what was done, and how to undo it.

    Raises:
        UnknownName: no such predictor. ConfigurationError: there is nothing to go back to, or it cannot be served.
    """
    with registered(settings) as (database, registry):
        view, moves = registry.view(), registry.moves(name, LIVE)
        before = view.resolve(name)
        predictor = view.resolve(name, version=version_before(name, moves))
        _check(settings, database, view, predictor, LIVE, force=force)
        registry.set_alias(name, LIVE, predictor.version, cause=Cause.ROLLBACK)
    undo = f"`headrace predictors alias {name} live {before.version}` undoes that"
    said = [f"{name}: live {before.version} -> {predictor.version}; {undo}"]
    if view.percents.get(name):
        share, canary = view.percents[name], view.aliases[name, CANARY]
        stop = f"`headrace predictors unalias {name} canary` stops that"
        said.append(f"{name}: canary version {canary} keeps its {share:g} % of the entities; {stop}")
    return said


def take_away(settings: Settings, name: str, alias: str) -> None:
    """Remove an alias.

    Raises:
        UnknownName: no such predictor or alias. ConfigurationError: live, without which nobody is answered.
    """
    with registered(settings) as (_, registry):
        if alias == LIVE:
            raise ConfigurationError(
                f"live of predictor {name!r} answers its callers; point it at another version instead of taking it away"
            )
        registry.remove_alias(name, alias)


def history(settings: Settings, name: str) -> list[str]:
    """Every move of the predictor's aliases, the latest first: when, alias, version, why.

    Raises:
        UnknownName: no such predictor.
    """
    with registered(settings) as (_, registry):
        registry.view().require(name)
        return [_line(move) for move in reversed(registry.moves(name))]


def _line(move: AliasMove) -> str:
    to = "-" if move.version is None else str(move.version)
    share = "" if move.percent is None else f"{move.percent:g} %"
    return "\t".join((f"{move.moved_at:%Y-%m-%d %H:%M:%S} UTC", move.alias, to, str(move.cause), share)).rstrip()


def _check(
    settings: Settings, database: Engine, view: RegistryView, predictor: Predictor, alias: str, *, force: bool
) -> None:
    check_features(database, predictor)
    if alias in (CANARY, SHADOW):
        _check_beside_live(view, predictor, alias)
    if alias in SERVED and isinstance(predictor.model, TorchScorer):
        try:
            asyncio.run(hold(settings, predictor.id, predictor.model))
        except Unavailable as error:
            if not force:
                raise ConfigurationError(
                    f"{predictor.id} is not served as {alias}: no running engine holds its scorer ({error}); start the "
                    "stack, or read its stack.env so that this command finds the engine; --force points the alias all "
                    "the same, and the lower rungs answer until an engine has loaded it"
                ) from None
        except HeadraceError as error:
            raise ConfigurationError(
                f"{predictor.id} is not served as {alias}: the engine could not load its scorer: {error}"
            ) from None


def _check_beside_live(view: RegistryView, predictor: Predictor, alias: str) -> None:
    if isinstance(predictor.model, LMGenerate):
        raise ConfigurationError(f"{predictor.id} writes text; only a predictor that scores has a {alias} version")
    live = view.resolve(predictor.name)
    faults = list(input_faults(live, predictor))
    if faults:
        raise ConfigurationError(
            f"{predictor.id} cannot be the {alias} beside live version {live.version}, whose requests it would refuse: "
            + "; ".join(faults)
        )


async def hold(settings: Settings, scorer: str, model: TorchScorer) -> None:
    """Have the running engine load the scorer, unless it holds it.

    Raises:
        EngineUnavailable: no engine answers. ModelFileError: the file is absent, damaged or another one.
    """
    client = EngineClient(settings.engine_endpoint, lost_after_s=settings.engine.lost_after_s)
    await client.start()
    try:
        await client.wait_available(ENGINE_S)
        await client.load_scorer(scorer, model.artifact.path, model.artifact.sha256)
    finally:
        await client.close()

"""`headrace predictors`: which versions there are, and which of them has the traffic."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

predictors = typer.Typer(no_args_is_help=True, help="List predictors; move traffic between their versions.")

Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Although no engine runs that could hold the version.")]


@predictors.command("list")
def list_predictors() -> None:
    """Every registered version and the aliases that point at it."""
    from core_engine.predictors.registry import CANARY
    from core_engine.settings import load_settings
    from headrace.alias_moves import registered

    with registered(load_settings()) as (_, registry):
        view = registry.view()
    for name, version in sorted(view.versions):
        aliases = sorted(alias for (owner, alias), target in view.aliases.items() if (owner, target) == (name, version))
        print(f"{name}:{version}", *(a if a != CANARY else f"{a} {view.percents[name]:g} %" for a in aliases), sep="\t")


@predictors.command("alias")
def set_alias(
    name: str,
    alias: str,
    version: int,
    percent: Annotated[
        float | None, typer.Option(help="Of a canary: its share of the entities that ask for live.", min=0, max=100)
    ] = None,
    force: Force = False,
) -> None:
    """Point ALIAS (live, canary, shadow, or a name of yours) of predictor NAME at VERSION; doors follow in a second."""
    from core_engine.settings import load_settings
    from headrace import alias_moves

    alias_moves.point(load_settings(), name, alias, version, percent=percent, force=force)
    print(f"{name}: {alias} -> {version}" + (f" for {percent:g} % of the entities" if percent is not None else ""))


@predictors.command("unalias")
def remove_alias(name: str, alias: str) -> None:
    """Take ALIAS away: a canary's entities go back to live, a shadow scores no more."""
    from core_engine.settings import load_settings
    from headrace import alias_moves

    alias_moves.take_away(load_settings(), name, alias)
    print(f"{name}: {alias} is gone")


@predictors.command("rollback")
def roll_back(name: str, force: Force = False) -> None:
    """Point live of predictor NAME at the version before; doors follow in a second."""
    from core_engine.settings import load_settings
    from headrace import alias_moves

    print(*alias_moves.roll_back(load_settings(), name, force=force), sep="\n")


@predictors.command("history")
def history(name: str) -> None:
    """Every move of the aliases of predictor NAME, the latest first."""
    from core_engine.settings import load_settings
    from headrace import alias_moves

    print(*alias_moves.history(load_settings(), name), sep="\n")


@predictors.command("compare")
def compare(name: str, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """How the shadow version of predictor NAME differs from live, on the requests that both have scored."""
    from rich.console import Console

    from core_engine.settings import load_settings
    from headrace import compare as root

    found = root.compare(load_settings(), name)
    if json:
        print(root.to_json(found))
    else:
        root.show(found, Console())

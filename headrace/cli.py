"""The command line. Every command builds its own composition root, imported only when the command runs.

An error of our tree is one sentence on stderr and exit status 1; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core_engine.errors import HeadraceError
from core_engine.llm.openmp import spin_briefly

if TYPE_CHECKING:
    from core_engine.predictors.registry import Registry

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
predictors = typer.Typer(no_args_is_help=True, help="List predictors; point their aliases at versions.")
app.add_typer(predictors, name="predictors")


class Example(enum.StrEnum):
    FLIGHTS = "flights"


@app.callback()
def headrace() -> None:
    """Hybrid batch, online and streaming inference. Settings are environment variables HEADRACE_<SECTION>__<KEY>."""


@app.command()
def up(
    example: Annotated[Example | None, typer.Option(help="Prepare this example and load it into the stack.")] = None,
) -> None:
    """Start the local stack (Valkey, SQLite, engine, HTTP door) and stay until Ctrl-C."""
    from core_engine.settings import load_settings
    from headrace import interrupt
    from headrace.up import stay_up

    interrupt.run(stay_up(load_settings(), example=example is Example.FLIGHTS))


@app.command()
def demo(
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
) -> None:
    """Run the main job on real flights, on a stack of its own, and print what was measured."""
    from core_engine.settings import load_settings
    from headrace import interrupt
    from headrace.demo.run import run_demo

    signal = interrupt.run(run_demo(load_settings(), json))
    if signal is not None:
        sys.exit(128 + signal)


@app.command()
def engine() -> None:
    """Run one engine process (the local stack starts it for you)."""
    from core_engine.settings import load_settings
    from headrace.engine import run_engine

    run_engine(load_settings())


@app.command()
def door() -> None:
    """Run the HTTP door (the local stack starts it for you)."""
    from core_engine.settings import load_settings
    from headrace.door import run_door

    run_door(load_settings())


@predictors.command("list")
def list_predictors() -> None:
    """Every registered version and the aliases that point at it."""
    view = _registry().view()
    for name, version in sorted(view.versions):
        aliases = sorted(alias for (owner, alias), target in view.aliases.items() if (owner, target) == (name, version))
        print(f"{name}:{version}", *aliases, sep="\t")


@predictors.command("alias")
def set_alias(name: str, alias: str, version: int) -> None:
    """Point ALIAS of predictor NAME at VERSION; running doors follow within a second."""
    _registry().set_alias(name, alias, version)
    print(f"{name}: {alias} -> {version}")


def _registry() -> Registry:
    from core_engine.predictors.registry import Registry
    from core_engine.predictors.tables import open_database
    from core_engine.settings import load_settings
    from headrace.migrations import upgrade

    url = load_settings().database_url
    upgrade(url)
    return Registry(open_database(url))


def main() -> None:
    """Entry point of the script `headrace`."""
    spin_briefly()
    try:
        app()
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")

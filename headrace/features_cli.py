"""`headrace features`: the commands of the feature store. Each builds its composition root when it runs."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from featurestore.lifecycle.changes import Change
    from featurestore.lifecycle.materialization import Options
    from headrace.features import Outcome

features = typer.Typer(no_args_is_help=True, help="Declare features; bring them online; look at them; check them.")

Repository: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:ATTRIBUTE", help="A FeatureRepository.")]
View: TypeAlias = Annotated[str, typer.Argument(metavar="VIEW[:VERSION]", help="Without a version, the newest.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsOf: TypeAlias = Annotated[str | None, typer.Option(help="A past day (UTC) or instant with its offset.")]
ShiftDays: TypeAlias = Annotated[int, typer.Option(help="Added to both clocks of history, as examples and replays do.")]


@features.command("apply")
def apply(
    repository: Repository,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Register entities, views and on-demand views, after showing what changes. Again, it changes nothing."""
    from core_engine.errors import ConfigurationError
    from core_engine.settings import load_settings
    from featurestore.lifecycle.changes import Verdict, refusal
    from headrace import features as root

    settings = load_settings()
    _import_from_here()
    declared, found = root.planned(settings, repository)
    _show_changes(found, json=json)
    refused = [refusal(change) for change in found if change.verdict is Verdict.REFUSED]
    if refused:
        raise ConfigurationError(f"nothing is registered: {'; '.join(refused)}")
    if dry_run or all(change.verdict in (Verdict.SAME, Verdict.KEPT) for change in found):
        return
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("nothing is registered: nobody is there to ask; look with --dry-run, or add --yes")
        typer.confirm("Register this?", abort=True, err=True)
    root.apply(settings, declared)


@features.command("diff")
def diff(repository: Repository, json: Json = False) -> None:
    """Show what applying would change. Exit status 1 if some of it would be refused."""
    from core_engine.settings import load_settings
    from featurestore.lifecycle.changes import Verdict
    from headrace import features as root

    _import_from_here()
    _, found = root.planned(load_settings(), repository)
    _show_changes(found, json=json)
    if any(change.verdict is Verdict.REFUSED for change in found):
        sys.exit(1)


@features.command("list")
def list_views(json: Json = False) -> None:
    """Every registered view version and how far it is online."""
    from core_engine.settings import load_settings
    from headrace import features as root
    from headrace.features_show import show_registered, to_json

    found = root.registered(load_settings())
    if json:
        print(to_json(found))
    else:
        show_registered(found, _console())


@features.command("describe")
def describe(view: View, json: Json = False) -> None:
    """One view: its schema, source, clocks, TTL, owner and watermark."""
    from core_engine.settings import load_settings
    from headrace import features as root
    from headrace.features_show import show_described, to_json

    found = root.described(load_settings(), view)
    if json:
        print(to_json(found))
    else:
        show_described(found, _console())


@features.command("materialize")
def materialize(
    views: Annotated[list[str] | None, typer.Argument(metavar="VIEW[:VERSION]...")] = None,
    all: Annotated[bool, typer.Option("--all", help="The newest version of every view.")] = False,
    as_of: AsOf = None,
    rows_per_second: Annotated[float | None, typer.Option(help="At most so many rows a second.", min=0.1)] = None,
    shards: Annotated[int, typer.Option(help="Parts of the entities that are written side by side.", min=1)] = 1,
    full: Annotated[bool, typer.Option("--full", help="Every entity, whatever the watermark says.")] = False,
    shift_days: ShiftDays = 0,
    json: Json = False,
) -> None:
    """Bring views online: what became known since their watermarks. A run that stopped goes on where it was.

    An earlier --as-of rebuilds a day of the past: newer rows stay, and the watermark too. Exit status 1 if a view
    failed.
    """
    if bool(views) == all:
        raise typer.BadParameter("name some views, or give --all")
    outcomes = _materialize(views or [], _options(as_of, rows_per_second, shards, shift_days, full=full), json=json)
    if any(outcome.error is not None for outcome in outcomes):
        sys.exit(1)


def _materialize(views: list[str], options: Options, *, json: bool) -> list[Outcome]:
    from core_engine.settings import load_settings
    from headrace import features as root
    from headrace import interrupt
    from headrace.features_show import show_outcomes, to_json
    from headrace.steps import Steps

    settings, console, outcomes = load_settings(), _console(err=json), list[root.Outcome]()

    async def run() -> None:
        with Steps(console).step("Materialize") as bar:
            outcomes.extend(await root.materialize(settings, views, options, bar.advance))

    _stop_if_cut(interrupt.run(run()))
    if json:
        print(to_json(outcomes))
    else:
        show_outcomes(outcomes, console)
    return outcomes


@features.command("backfill")
def backfill(view: View, json: Json = False) -> None:
    """Make a windowed view's history, tiles and rows, from the events that its window names."""
    from core_engine.settings import load_settings
    from headrace import features as root
    from headrace.features_show import show_backfilled, to_json
    from headrace.steps import Steps

    console, start_s = _console(err=json), time.monotonic()
    with Steps(console).step("Backfill") as bar:
        done = root.backfill(load_settings(), view, bar.advance)
    if json:
        print(to_json(done))
    else:
        show_backfilled(view, done, time.monotonic() - start_s, console)


@features.command("get")
def get(view: View, key: str, as_of: AsOf = None, shift_days: ShiftDays = 0, json: Json = False) -> None:
    """The features of one entity with states and ages: as a door reads them now, or as they were known then."""
    import asyncio

    from core_engine.errors import StoreUnavailable
    from core_engine.settings import load_settings
    from headrace import features as root
    from headrace.features_show import show_row, to_json

    options = _options(as_of, None, 1, shift_days, full=False)
    row = asyncio.run(root.get(load_settings(), view, key, options))
    if row.failure is not None:
        raise StoreUnavailable(f"feature view {view}: {row.failure}; see headrace features doctor")
    if json:
        print(to_json(row))
    else:
        show_row(row, _console())


@features.command("delete")
def delete(
    view: Annotated[str, typer.Argument(metavar="VIEW")],
    version: Annotated[int, typer.Option(help="Which version.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    keys_per_second: Annotated[float, typer.Option(help="Keys of the server looked at, whosever.", min=1)] = 50_000.0,
    unregistered: Annotated[bool, typer.Option("--unregistered", help="Keys of a view no registry knows.")] = False,
    json: Json = False,
) -> None:
    """Remove a view version's keys from Redis, and then its registration; refused while a live predictor reads it."""
    from core_engine.errors import ConfigurationError
    from core_engine.settings import load_settings
    from headrace import features as root
    from headrace import interrupt
    from headrace.features_show import to_json
    from headrace.steps import Steps

    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("nothing is deleted: nobody is there to ask; add --yes")
        typer.confirm(f"Delete all that is online of {view}:{version}?", abort=True, err=True)
    settings, removed = load_settings(), list[int]()

    async def run() -> None:
        with Steps(_console(err=True)).step(f"Delete {view}:{version}") as bar:
            work = root.delete(settings, view, version, keys_per_second, bar.advance, is_unregistered=unregistered)
            removed.append(await work)

    _stop_if_cut(interrupt.run(run()))
    print(to_json({"view": view, "version": version, "keys": removed[0]}) if json else f"{removed[0]} keys removed")


@features.command("doctor")
def doctor(shift_days: ShiftDays = 0, json: Json = False) -> None:
    """Check the online store and every registered view, with what to do. Exit status 1 if there is a problem."""
    import asyncio

    from core_engine.settings import load_settings
    from featurestore.lifecycle.checks import Health
    from headrace import features as root
    from headrace.features_show import show_checks, to_json

    found = asyncio.run(root.examine(load_settings(), _options(None, None, 1, shift_days, full=False)))
    if json:
        print(to_json(found))
    else:
        show_checks(found, _console())
    if any(check.health is Health.PROBLEM for check in found):
        sys.exit(1)


@features.command("consistency")
def consistency(
    begin: Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day (UTC).")] = None,
    end: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The day after the last one.")
    ] = None,
    shift_days: ShiftDays = 0,
    max_mismatch: Annotated[float | None, typer.Option(help="Fail above this ratio of any feature and day.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the findings into this file.")] = None,
    json: Json = False,
) -> None:
    """Recompute what was served from history; show and keep what differs, per feature and day.

    Exit status 1 past the limit, and where a view could not be judged.
    """
    from core_engine.settings import load_settings
    from headrace.features_consistency import ConsistencyOptions, run_consistency

    options = ConsistencyOptions(begin, end, timedelta(days=shift_days), max_mismatch, plot, is_json=json)
    if not run_consistency(load_settings(), options, _console()):
        sys.exit(1)


def _options(as_of: str | None, rows_per_second: float | None, shards: int, shift_days: int, *, full: bool) -> Options:
    from headrace.cost import instant
    from headrace.features import options_of

    at = None if as_of is None else instant(as_of, "--as-of")
    return options_of(at, rows_per_second, shards, shift_days, is_full=full)


def _show_changes(found: list[Change], *, json: bool) -> None:
    from headrace.features_show import show_changes, to_json

    if json:
        print(to_json(found))
    else:
        show_changes(found, _console())


def _stop_if_cut(signal: int | None) -> None:
    if signal is not None:
        print("headrace: interrupted; what is done is kept: run the same command again to go on", file=sys.stderr)
        sys.exit(128 + signal)


def _console(*, err: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=err)


def _import_from_here() -> None:
    """A repository lies in the folder where the command is run, as `python -m` would find it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)

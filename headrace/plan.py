"""Composition root of `headrace plan`: the registry in, a table of what is planned for its live predictors out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy.orm import Session

from core_engine.predictors.declaration import Predictor
from core_engine.predictors.plan import Plan, duration, plan, quoted
from core_engine.predictors.registry import LIVE, Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from featurestore.registry import load_views
from headrace.migrations import upgrade

Planned = tuple[Predictor, Plan]
COLUMNS = ("predictor", "version", "mode", "also", "freshness", "budget", "why", "quoted")


def planned(settings: Settings) -> list[Planned]:
    """Every live predictor with its plan, by name; the windowed views are those that a stream feeds."""
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    try:
        view = Registry(database).view()
        with Session(database) as session:
            streamed = {each.name for each in load_views(session) if each.window is not None}
    finally:
        database.dispose()
    live = [view.resolve(name) for name in view.names() if (name, LIVE) in view.aliases]
    return [(predictor, plan(predictor, streamed)) for predictor in live]


def show(plans: Sequence[Planned], console: Console) -> None:
    """The plans as a table, or one sentence where there are none."""
    if not plans:
        console.print(
            "No predictor is live here: register one and point its alias `live` at a version.", soft_wrap=True
        )
        return
    table = Table()
    for name in COLUMNS:
        table.add_column(name, justify="right" if name == "version" else "left", overflow="fold")
    for predictor, made in plans:
        table.add_row(*map(escape, _cells(predictor, made)))
    console.print(table)


def _cells(predictor: Predictor, made: Plan) -> Sequence[str]:
    return (
        predictor.name,
        str(predictor.version),
        str(made.mode),
        ", ".join(made.also) or "-",
        duration(predictor.freshness_s) if predictor.freshness_s else "0 s",
        duration(predictor.budget_ms / 1e3),
        made.why,
        quoted(predictor),
    )

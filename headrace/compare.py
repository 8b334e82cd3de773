"""Composition root of `headrace predictors compare`: spools and ledger in; what a shadow version would change, out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core_engine.costs.comparisons import EDGES, Compared, compared
from core_engine.errors import ConfigurationError
from core_engine.predictors.registry import Registry
from core_engine.settings import Settings
from headrace.cost import ledger, load

BAR = 40  # characters of the longest


def compare(settings: Settings, name: str) -> list[Compared]:
    """Load the spools, then every pair of versions that was compared, the latest first.

    Raises:
        UnknownName: no such predictor. ConfigurationError: nothing was compared yet, or the ledger cannot be opened.
    """
    load(settings)
    with ledger(settings) as database, database.connect() as connection:
        Registry(database).view().require(name)
        found = compared(connection, name)
    if not found:
        raise ConfigurationError(
            f"nothing of predictor {name!r} was compared yet: point its alias `shadow` at another version than live's, "
            "and send requests that live's model answers"
        )
    return found


def to_json(found: Sequence[Compared]) -> str:
    return msgspec.json.format(msgspec.json.encode({"edges": EDGES, "compared": found}), indent=2).decode()


def show(found: Sequence[Compared], console: Console) -> None:
    """Each pair as a few lines and a histogram."""
    for pair in found:
        console.print(
            f"{escape(pair.predictor)}: shadow version {pair.shadow_version} beside live version {pair.version}, "
            f"{pair.from_at:%Y-%m-%d %H:%M:%S} to {pair.to_at:%Y-%m-%d %H:%M:%S} UTC",
            soft_wrap=True,
        )
        console.print(f"compared {pair.count} of {pair.live_answers} answers of live's model", soft_wrap=True)
        console.print(
            f"difference (shadow less live): mean {pair.mean_difference:+.6f}, "
            f"mean absolute {pair.mean_absolute_difference:.6f}",
            soft_wrap=True,
        )
        console.print(_disagreement(pair), soft_wrap=True)
        console.print(_histogram(pair))


def _disagreement(pair: Compared) -> str:
    if not pair.judged:
        return "no threshold is declared by both: whether they decide differently is not known"
    share = 100 * pair.disagreements / pair.judged
    return f"they decide {pair.disagreements} of {pair.judged} requests differently ({share:.3f} %)"


def _histogram(pair: Compared) -> Table:
    table = Table("difference", "requests", "", box=None)
    table.columns[1].justify = "right"
    between = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES)]
    names = [f"below {EDGES[0]:g}", *between, f"{EDGES[-1]:g} and more"]
    most = max(pair.histogram)
    for name, count in zip(names, pair.histogram, strict=True):
        table.add_row(name, str(count), "#" * -(-BAR * count // most))
    return table

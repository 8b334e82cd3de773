"""What every benchmark script shares: its two options, its table, its JSON, and its last line of headline figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.machine import machine

Row = dict[str, Any]


def options(description: str, parts: Sequence[str] = ()) -> argparse.Namespace:
    """`--quick` (ends within 50 s), `--json PATH`; for a script that has parts, `--only NAME`, which may come again."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller run that ends within 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write headline and rows here")
    if parts:
        parser.add_argument("--only", action="append", choices=parts, help="only this part; may be given again")
    return parser.parse_args()


def publish(title: str, rows: Sequence[Row], headline: dict[str, float], path: Path | None) -> None:
    """Print the table and the headline figures as the last line; write both to `path` if given."""
    show(f"{title}\n{machine()}", rows)
    conclude(rows, headline, path)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print rows that have the same columns."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=160).print(table)


def conclude(rows: Sequence[Row], headline: dict[str, float], path: Path | None) -> None:
    """Print the headline figures as the last line; write them with the rows, of any columns, to `path` if given."""
    if path:
        path.write_text(json.dumps({"headline": headline, "rows": list(rows), "machine": machine()}, indent=1))
    print("  ".join(f"{name}={value:.4g}" for name, value in headline.items()))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""What every benchmark script shares: its two options, its table, its JSON, and its last line of headline figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def options(description: str) -> argparse.Namespace:
    """`--quick` (ends within 50 s) and `--json PATH`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller run that ends within 50 s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write headline and rows here")
    return parser.parse_args()


def machine() -> str:
    """The processor, the threads in use and the torch build, as they stand beside every figure."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def publish(title: str, rows: Sequence[Row], headline: dict[str, float], path: Path | None) -> None:
    """Print the table and the headline figures as the last line; write both to `path` if given."""
    table = Table(title=f"{title}\n{machine()}")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=160).print(table)
    if path:
        path.write_text(json.dumps({"headline": headline, "rows": list(rows), "machine": machine()}, indent=1))
    print("  ".join(f"{name}={value:.4g}" for name, value in headline.items()))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

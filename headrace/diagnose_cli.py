"""`headrace diagnose`: the command. It builds its composition root when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def diagnose(
    minutes: Annotated[float, typer.Option(help="Requests answered within so many minutes.", min=0.001)] = 15.0,
    file: Annotated[Path | None, typer.Option(help="All requests of this spool file instead.")] = None,
    slowest: Annotated[float, typer.Option(help="Share of requests that counts as slow.", min=0.001, max=1.0)] = 0.1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where slow requests spend their time (queue, prefill, decode, features, front end) and what would help."""
    from rich.console import Console

    from core_engine.settings import load_settings
    from headrace.diagnose import diagnosed, show, to_json

    made = diagnosed(load_settings(), minutes, file, slowest)
    if json:
        typer.echo(to_json(made))
    else:
        show(made, Console())

"""Steps of a long command on a terminal: a bar while one runs, a line with its seconds when it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Steps:
    """Numbers and times the steps of one run; `seconds` by title, in order."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, title: str) -> Iterator[Bar]:
        """A step with a bar."""
        with self.own_output(title), self._bar(title) as bar:
            yield bar

    @contextmanager
    def own_output(self, title: str) -> Iterator[None]:
        """A step that prints for itself while it runs."""
        start = time.monotonic()
        yield
        seconds = self.seconds[title] = time.monotonic() - start
        self.console.print(f"[green]✓[/green] {title} [dim]{seconds:.1f} s[/dim]")

    @contextmanager
    def _bar(self, title: str) -> Iterator[Bar]:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,  # a log wants the lines alone
        ) as progress:
            yield Bar(progress, progress.add_task(title, total=None), title)


class Bar:
    """The bar of a running step; it swings until `advance` has said how much there is to do."""

    def __init__(self, progress: Progress, task: TaskID, title: str) -> None:
        self._progress = progress
        self._task = task
        self._title = title

    def advance(self, done: int, total: int, what: str = "") -> None:
        """`done` of `total`; `what` names the part of the step that this is."""
        description = f"{self._title}: {what}" if what else self._title
        self._progress.update(self._task, completed=done, total=total, description=description)

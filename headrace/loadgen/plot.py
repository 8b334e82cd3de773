"""One picture of a run: latency by the time at which requests were due, its distribution, and what was in flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core_engine.errors import ConfigurationError
from headrace.loadgen.load_run import LoadRun, Record
from headrace.loadgen.report import e2el_ms, ttft_ms


def plot(run: LoadRun, title: str, path: Path) -> None:
    """Write the picture to `path`; its suffix names the format. The warm-up is in it.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written in that format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: install the extra, headrace[plot]") from None
    figure = Figure(figsize=(11, 10), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    over_time, spread, in_flight = figure.subplots(3, 1)
    figure.suptitle(title)
    _draw_over_time(over_time, run)
    _draw_spread(spread, run.records)
    _draw_in_flight(in_flight, run)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"plot {path} cannot be written: {error}") from None


def _draw_over_time(axes: Any, run: LoadRun) -> None:
    """By rung, where the server tells it; failures by their kind, at the time that it took to know."""
    points = defaultdict[str, list[tuple[float, float]]](list)
    for record in run.records:
        taken_ms = e2el_ms(record)
        name = record.failure or (record.answer and record.answer.rung) or "answered"
        points[name].append(
            (record.due_s - run.start_s, (record.end_s - record.due_s) * 1e3 if taken_ms is None else taken_ms)
        )
    for name, each in sorted(points.items()):
        axes.scatter([x for x, _ in each], [y for _, y in each], s=4, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("due, s")
    axes.set_ylabel("E2EL from due, ms")
    axes.legend(loc="upper right")


def _draw_spread(axes: Any, records: Sequence[Record]) -> None:
    """Latency below which a share of the good answers lie."""
    for name, of in (("E2EL", e2el_ms), ("TTFT", ttft_ms)):
        values = sorted(value for record in records if (value := of(record)) is not None)
        if values:
            axes.step(values, [(rank + 1) / len(values) for rank in range(len(values))], where="post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("ms")
    axes.set_ylabel("share of answers")
    if axes.lines:
        axes.legend(loc="lower right")


def _draw_in_flight(axes: Any, run: LoadRun) -> None:
    due_s = [record.due_s - run.start_s for record in run.records]
    axes.step(due_s, [record.in_flight for record in run.records], where="post", linewidth=0.8)
    axes.set_xlabel("due, s")
    axes.set_ylabel("requests in flight")

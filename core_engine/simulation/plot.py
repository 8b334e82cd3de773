"""One picture of a run: sequences per step, KV held, and the time to first token of each request, over virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core_engine.contracts import Pool
from core_engine.errors import ConfigurationError
from core_engine.simulation.recording import Recording


def plot(recording: Recording, title: str, path: Path) -> None:
    """Write the picture of a run that kept its samples to `path`; its suffix names the format.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written in that format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: install the extra, headrace[plot]") from None
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    rows, kv, ttft = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title)
    _draw_rows(rows, recording)
    _draw_kv(kv, recording)
    _draw_ttft(ttft, recording)
    ttft.set_xlabel("virtual time, s")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"plot {path} cannot be written: {error}") from None


def _draw_rows(axes: Any, recording: Recording) -> None:
    at_s = [each.at_s for each in recording.samples]
    axes.step(at_s, [each.interactive for each in recording.samples], where="post", label="interactive", linewidth=0.8)
    axes.step(at_s, [each.bulk for each in recording.samples], where="post", label="bulk", linewidth=0.8)
    axes.step(at_s, [each.waiting for each in recording.samples], where="post", label="waiting", linewidth=0.8)
    axes.set_ylabel("sequences per step")
    axes.legend(loc="upper right")


def _draw_kv(axes: Any, recording: Recording) -> None:
    at_s = [each.at_s for each in recording.samples]
    axes.step(at_s, [100 * each.kv_share for each in recording.samples], where="post", linewidth=0.8)
    axes.set_ylabel("KV blocks held, %")
    axes.set_ylim(0, 100)


def _draw_ttft(axes: Any, recording: Recording) -> None:
    for pool in Pool:
        points = [(a.job.arrival_s, a.ttft_s) for a in recording.attempts.values() if a.job.pool is pool and a.ttft_s]
        if points:
            axes.scatter([x for x, _ in points], [y for _, y in points], s=4, label=str(pool))
    axes.set_yscale("log")
    axes.set_ylabel("TTFT, s")
    if axes.collections:
        axes.legend(loc="upper right")

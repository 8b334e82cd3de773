"""One picture of a judgement: the tail, where the text got harder, what was forgotten, and how near each limit is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core_engine.errors import ConfigurationError
from core_engine.quality.gate import Findings
from core_engine.quality.limits import Verdict
from core_engine.quality.needles import NeedleReport
from core_engine.quality.report import STANDARD_ERRORS, Bucket, Report


def plot(found: Findings, judged: Sequence[Verdict], title: str, path: Path) -> None:
    """Write the picture to `path`; its suffix names the format.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written in that format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: install the extra, headrace[plot]") from None
    figure = Figure(figsize=(14, 8), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    (tail, rarity, position), (needles, greedy, limits) = figure.subplots(2, 3)
    figure.suptitle(title)
    _draw_tail(tail, found.tokens)
    _draw_buckets(rarity, found.tokens.by_rarity, "occurrences of the token in the text")
    _draw_buckets(position, found.tokens.by_position, "position in the sequence")
    _draw_needles(needles, found.needles)
    greedy.hist(found.greedy.lengths, bins=16, range=(0, found.greedy.num_tokens))
    greedy.set(xlabel="greedy tokens before the first different one", ylabel="prompts")
    _draw_limits(limits, judged)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"plot {path} cannot be written: {error}") from None


def _draw_tail(axes: Any, tokens: Report) -> None:
    axes.bar([*tokens.kl_percentiles, "max"], [*tokens.kl_percentiles.values(), tokens.max_kl])
    axes.axhline(tokens.mean_kl, linestyle="--", linewidth=0.8, label="mean")
    axes.set(yscale="log" if tokens.max_kl > 0 else "linear", xlabel="percentile of the tokens", ylabel="KL, nats")
    axes.legend()


def _draw_buckets(axes: Any, buckets: Sequence[Bucket], label: str) -> None:
    errors = [STANDARD_ERRORS * each.error for each in buckets]
    axes.bar([each.name for each in buckets], [each.change for each in buckets], yerr=errors, capsize=3)
    axes.set(xlabel=label, ylabel="change of mean NLL, nats")
    axes.tick_params(axis="x", labelrotation=20)


def _draw_needles(axes: Any, needles: NeedleReport) -> None:
    for length in sorted({case.length for case in needles.recalled}):
        cases = [case for case in needles.recalled if case.length == length]
        axes.plot([case.depth for case in cases], [case.drop for case in cases], marker="o", label=f"{length} tokens")
    axes.set(xlabel="depth of the fact", ylabel="lost log-probability, nats")
    if axes.lines:
        axes.legend()


def _draw_limits(axes: Any, judged: Sequence[Verdict]) -> None:
    """How much of each limit is used; a bar beyond 1 is past it."""
    shown = [(each, each.used) for each in judged if each.used is not None]
    colours = ["tab:blue" if each.holds else "tab:red" for each, _ in shown]
    axes.barh([each.name for each, _ in shown], [min(used, 3.0) for _, used in shown], color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("value, as a share of its limit")

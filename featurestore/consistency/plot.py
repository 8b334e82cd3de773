"""One picture of the findings: features by days, a panel each for what mismatched, was missing and was stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from core_engine.errors import ConfigurationError
from featurestore.consistency.findings import FeatureDay

PANELS: Final[tuple[tuple[str, Callable[[FeatureDay], float]], ...]] = (
    ("mismatch", lambda day: day.mismatch_ratio),
    ("missing", lambda day: day.missing_ratio),
    ("stale", lambda day: day.stale_ratio),
)
MAX_WRITTEN: Final = 16  # days whose cells are wide enough for a number


def plot(days: Sequence[FeatureDay], path: Path) -> None:
    """Draw `days` into `path`; its suffix names the format. A cell without samples is left grey.

    Raises:
        ConfigurationError: matplotlib is not installed, there is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: install the extra, headrace[plot]") from None
    if not days:
        raise ConfigurationError(f"plot {path}: there is nothing to draw")
    features = sorted({_name(day) for day in days})
    dates = sorted({day.day for day in days})
    width = min(max(1.5, 0.35 * len(dates)), 6.0)
    figure = Figure(figsize=(3.5 + 3 * width, 2.0 + 0.25 * len(features)), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (title, ratio) in zip(panels, PANELS, strict=True):
        image = _draw(axes, title, {(_name(day), day.day): 100 * ratio(day) for day in days}, features, dates)
    figure.colorbar(
        image, ax=panels, label="% of samples (grey: none)", ticks=(0, 1, 5, 10, 25, 50, 100), fraction=0.03
    )
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"plot {path} cannot be written: {error}") from None


def _name(day: FeatureDay) -> str:
    return f"{day.view}:{day.version}.{day.feature}"


def _draw(axes: Any, title: str, percent: dict[Any, float], features: list[str], dates: list[Any]) -> Any:
    from matplotlib.colors import PowerNorm

    cells = [[percent.get((feature, day), float("nan")) for day in dates] for feature in features]
    axes.set_facecolor("lightgrey")
    norm = PowerNorm(0.4, vmin=0, vmax=100)  # one in a hundred is to be seen beside all
    image = axes.imshow(cells, norm=norm, cmap="Reds", aspect="auto", interpolation="nearest")
    axes.set_title(title)
    axes.set_yticks(range(len(features)), features, fontsize=7)
    shown = range(0, len(dates), -(-len(dates) // MAX_WRITTEN))
    axes.set_xticks(shown, [f"{dates[i]:%m-%d}" for i in shown], rotation=90, fontsize=7)
    if len(dates) <= MAX_WRITTEN:
        for row, column in ((row, column) for row in range(len(features)) for column in range(len(dates))):
            if (value := cells[row][column]) > 0:  # neither none nor NaN
                colour = "white" if value > 30 else "black"
                axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=6, color=colour)
    return image

"""The limits of the gate: one number for each measure and precision, in `limits.toml` or a file of the user's own."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from core_engine.errors import ConfigurationError
from core_engine.quality.gate import Findings
from core_engine.quality.report import Bucket

Limits = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of the findings that a limit is for; None where there was nothing to measure it by."""

    of: Callable[[Findings], float | None]
    is_minimum: bool = False  # of the limit


def _worst(buckets: tuple[Bucket, ...]) -> float:
    changes = [each.certain_change for each in buckets]
    return math.nan if any(map(math.isnan, changes)) else max(changes)


MEASURES: Mapping[str, Measure] = {
    "mean_kl": Measure(lambda found: found.tokens.mean_kl),
    "worst_decile_kl": Measure(lambda found: found.tokens.worst_decile_kl),
    "worst_percent_kl": Measure(lambda found: found.tokens.worst_percent_kl),
    "tail_ratio": Measure(lambda found: found.tokens.tail_ratio),
    "top1_agreement": Measure(lambda found: found.tokens.top1_agreement, is_minimum=True),
    "confident_flips": Measure(lambda found: found.tokens.confident_flips),
    "nll_change": Measure(lambda found: abs(found.tokens.nll_change)),
    "rarity_nll_change": Measure(lambda found: _worst(found.tokens.by_rarity)),
    "position_nll_change": Measure(lambda found: _worst(found.tokens.by_position)),
    "worst_sequence_kl": Measure(lambda found: found.tokens.worst_sequence_kl),
    "needle_drop": Measure(lambda found: found.needles.worst_drop),
    "needles_kept": Measure(lambda found: found.needles.kept, is_minimum=True),
    "decode_mean_kl": Measure(lambda found: found.greedy.mean_kl),
    "decode_worst_percent_kl": Measure(lambda found: found.greedy.worst_percent_kl),
    "decode_confident_flips": Measure(lambda found: found.greedy.confident_flips),
    "greedy_length": Measure(lambda found: found.greedy.median_length, is_minimum=True),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One limit beside what was measured. Not a number is past every limit; what could not be measured is not."""

    name: str
    value: float | None
    limit: float
    is_minimum: bool

    @property
    def holds(self) -> bool:
        if self.value is None:
            return True
        return self.value >= self.limit if self.is_minimum else self.value <= self.limit

    @property
    def used(self) -> float | None:
        """How much of the limit is used: past 1 it does not hold. None where that cannot be said."""
        above, below = (self.limit, self.value) if self.is_minimum else (self.value, self.limit)
        if above is None or below is None or not below or not math.isfinite(above):
            return None
        return above / below

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.name} is {value}, its limit at {'least' if self.is_minimum else 'most'} {self.limit:g}"


def verdicts(found: Findings, limits: Limits) -> list[Verdict]:
    """Every limit, in the order of the measures."""
    return [Verdict(name, each.of(found), limits[name], each.is_minimum) for name, each in MEASURES.items()]


def load_limits(weights: str, path: Path | None = None) -> Limits:
    """The limits for weights of this precision.

    Raises:
        ConfigurationError: for a file that cannot be read, has no such section, or a section that lacks a measure, has
            one that is unknown, or gives no number.
    """
    name = str(path) if path is not None else "limits.toml"
    try:
        content = path.read_text() if path is not None else (files(__package__) / "limits.toml").read_text()
        sections = tomllib.loads(content)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"limits {name} cannot be read: {error}") from None
    section = sections.get(weights)
    if not isinstance(section, dict):
        raise ConfigurationError(
            f"limits {name} have no section [{weights}]; there are {', '.join(sections) or 'none'}"
        )
    _check(name, weights, section)
    return section


def _check(name: str, weights: str, section: dict[str, object]) -> None:
    for key in MEASURES.keys() - section.keys():
        raise ConfigurationError(f"limits {name}: [{weights}] lacks {key}; `inf`, or 0 for a minimum, judges nothing")
    for key, value in section.items():
        if key not in MEASURES:
            raise ConfigurationError(f"limits {name}: [{weights}] {key} is unknown; known are {', '.join(MEASURES)}")
        if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
            raise ConfigurationError(f"limits {name}: [{weights}] {key} = {value!r}: expected a number")

"""What a recomputation found: per feature and UTC day, how many served values are in which class."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date

import msgspec

from featurestore.consistency.comparison import LACKING, MISMATCHED, Cause, Outcome
from featurestore.consistency.log_files import DAY_US, Fault
from featurestore.instants import from_us


class FeatureDay(msgspec.Struct, frozen=True, kw_only=True):
    """One feature on one UTC day. `outcomes` and `causes` (of what does not match) leave out what did not occur.

    `oldest_s` is the greatest age of a value that was served and does not match, seconds; None where none had an age.
    """

    day: date
    view: str
    version: int
    feature: str
    outcomes: dict[Outcome, int]
    causes: dict[Cause, int]
    oldest_s: float | None = None

    @property
    def samples(self) -> int:
        return sum(self.outcomes.values())

    @property
    def mismatch_ratio(self) -> float:
        """Values served that differ from history's, of all served or asked for."""
        return self._ratio(MISMATCHED)

    @property
    def missing_ratio(self) -> float:
        """Values not served that history knew, the failed reads among them."""
        return self._ratio(LACKING)

    @property
    def stale_ratio(self) -> float:
        """Values served as stale that were fresh in history."""
        return self._ratio({Outcome.STALE})

    def _ratio(self, among: set[Outcome] | frozenset[Outcome]) -> float:
        return sum(self.outcomes.get(outcome, 0) for outcome in among) / self.samples


@dataclass(frozen=True, slots=True)
class Findings:
    """`rows` were compared. `failures` says by view why rows of it could not be, `faults` what of the log is lost."""

    days: tuple[FeatureDay, ...]
    rows: int
    failures: dict[str, str]
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class _Count:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    causes: Counter[Cause] = field(default_factory=Counter)
    oldest_us: int | None = None


class Tally:
    """Counts outcomes; bounded by features times days."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, int, str], _Count] = {}

    def count(self, view: str, version: int, feature: str, at_us: int) -> _Count:
        """The counts of the feature on the day of `at_us`."""
        key = (at_us // DAY_US, view, version, feature)
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _Count()
        return count

    def days(self) -> tuple[FeatureDay, ...]:
        """By day, view, version and feature."""
        return tuple(
            FeatureDay(
                day=from_us(day * DAY_US).date(),
                view=view,
                version=version,
                feature=feature,
                outcomes=dict(count.outcomes),
                causes=dict(count.causes),
                oldest_s=None if count.oldest_us is None else count.oldest_us / 1e6,
            )
            for (day, view, version, feature), count in sorted(self._counts.items())
        )

"""The rates of a feature and day follow from its counts; the picture of them is drawn or refused in a sentence."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from featurestore.consistency.comparison import Outcome
from featurestore.consistency.findings import FeatureDay, Tally
from featurestore.consistency.log_files import DAY_US
from featurestore.consistency.plot import plot

COUNTS = st.dictionaries(st.sampled_from(Outcome), st.integers(1, 1000), min_size=1)


def feature_day(outcomes: dict[Outcome, int], day: date = date(2026, 3, 8), feature: str = "wind") -> FeatureDay:
    return FeatureDay(day=day, view="weather", version=1, feature=feature, outcomes=outcomes, causes={})


@given(COUNTS)
def test_the_rates_share_out_every_sample_once(outcomes: dict[Outcome, int]) -> None:
    day = feature_day(outcomes)
    fine = sum(outcomes.get(outcome, 0) for outcome in (Outcome.MATCH, Outcome.EXPIRED)) / day.samples
    assert day.mismatch_ratio + day.missing_ratio + day.stale_ratio + fine == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("outcome", "mismatch", "missing", "stale"),
    [
        *((outcome, 0.25, 0, 0) for outcome in (Outcome.VALUE, Outcome.NULL, Outcome.STATE, Outcome.UNEXPECTED)),
        *((outcome, 0, 0.25, 0) for outcome in (Outcome.MISSING, Outcome.FAILED)),
        (Outcome.STALE, 0, 0, 0.25),
        (Outcome.EXPIRED, 0, 0, 0),
    ],
)
def test_each_class_counts_in_its_own_rate(outcome: Outcome, mismatch: float, missing: float, stale: float) -> None:
    day = feature_day({Outcome.MATCH: 3, outcome: 1})
    assert (day.mismatch_ratio, day.missing_ratio, day.stale_ratio) == (mismatch, missing, stale)


def test_an_instant_is_counted_on_its_utc_day_also_before_1970() -> None:
    tally = Tally()
    for at_us in (-1, 0, DAY_US - 1, DAY_US):
        tally.count("weather", 1, "wind", at_us).outcomes[Outcome.MATCH] += 1
    days = [(day.day, day.samples) for day in tally.days()]
    assert days == [(date(1969, 12, 31), 1), (date(1970, 1, 1), 2), (date(1970, 1, 2), 1)]


@pytest.mark.parametrize("num_days", [1, 40])
def test_a_picture_of_few_and_of_many_days_is_drawn(tmp_path: Path, num_days: int) -> None:
    pytest.importorskip("matplotlib")
    days = [
        feature_day({Outcome.MATCH: 9, Outcome.STALE: 1}, date(2026, 3, 8) + timedelta(days=i), feature)
        for i in range(num_days)
        for feature in ("wind", "temp")
        if (i, feature) != (1, "temp")
    ]
    plot(days, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigurationError, match="nothing to draw"):
        plot([], tmp_path / "p.png")
    day = feature_day({Outcome.MATCH: 1})
    for name in ("p.unknown", "no/such/folder/p.png"):
        with pytest.raises(ConfigurationError, match=r"plot .* cannot be written"):
            plot([day], tmp_path / name)

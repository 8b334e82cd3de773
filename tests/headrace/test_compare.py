"""`headrace predictors compare` over a state folder: spools in, a few lines and a histogram out."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from core_engine.costs.comparisons import EDGES, Compared
from core_engine.costs.facts import ComparisonFact
from core_engine.errors import ConfigurationError
from core_engine.settings import Settings
from headrace.alias_moves import registered
from headrace.compare import compare, show, to_json
from tests.core_engine.costs.ledger import caller, write_spool
from tests.core_engine.predictors.doubles import delay_predictor

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(state_dir=tmp_path)
    with registered(settings) as (_, registry):
        registry.register(delay_predictor(tmp_path))
    return settings


def spooled(settings: Settings, *differences: float, disagrees: bool | None = False) -> list[Compared]:
    facts = [
        ComparisonFact(
            attempt_id=str(number),
            predictor="delay",
            version=1,
            shadow_version=2,
            difference=difference,
            disagrees=disagrees,
            compared_at=AT.replace(second=number),
        )
        for number, difference in enumerate(differences, start=1)
    ]
    write_spool(settings.spool_dir, [*facts, caller("live", 1.5)], "door-1-0000.jsonl")
    return compare(settings, "delay")


def shown(found: list[Compared]) -> list[str]:
    screen = io.StringIO()
    show(found, Console(file=screen, width=120))
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_the_screen_says_how_much_was_compared_and_how_far_apart_they_are(settings: Settings) -> None:
    lines = shown(spooled(settings, -0.25, 0.0, 0.0, 0.05))
    assert lines[0] == ("delay: shadow version 2 beside live version 1, 2026-03-01 12:00:01 to 2026-03-01 12:00:04 UTC")
    assert lines[1] == "compared 4 of 1 answers of live's model"
    assert lines[2] == "difference (shadow less live): mean -0.050000, mean absolute 0.075000"
    assert lines[3] == "they decide 0 of 4 requests differently (0.000 %)"
    bars = {line.split("  ")[0].strip(): line.count("#") for line in lines[5:]}
    assert {name: length for name, length in bars.items() if length} == {
        "below -0.2": 20,
        "-0.001 to 0.001": 40,
        "0.05 to 0.1": 20,
    }
    assert len(bars) == len(EDGES) + 1


def test_without_thresholds_the_screen_says_so(settings: Settings) -> None:
    assert "no threshold is declared by both" in shown(spooled(settings, 0.1, disagrees=None))[3]


def test_json_has_the_edges_and_every_pair(settings: Settings) -> None:
    told = json.loads(to_json(spooled(settings, 0.5)))
    assert told["edges"] == list(EDGES)
    assert told["compared"][0]["histogram"] == [0] * len(EDGES) + [1]


def test_before_anything_was_compared_it_says_what_is_needed(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="point its alias `shadow` at another version than live's"):
        compare(settings, "delay")

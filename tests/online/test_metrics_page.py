"""docs/metrics.md has every series that a door can show, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from core_engine.llm.messages import Snapshot
from headrace import consistency_gauges
from tests.online.conftest import DoorUnderTest

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


async def test_the_page_lists_every_series_and_no_other(door: DoorUnderTest) -> None:
    door.engine.snapshot = Snapshot()
    shown = {family.name for family in door.services.metrics.page.collect()}
    shown |= {consistency_gauges.RATIO[0], consistency_gauges.SAMPLES[0]}  # a composition root adds them
    listed = re.findall(r"^\| `(headrace_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == shown

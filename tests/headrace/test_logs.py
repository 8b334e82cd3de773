"""Every line that a serving process writes is one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime

CODE = """
import logging, pathlib, structlog
from headrace.logs import configure_logging
configure_logging("{level}")
log = structlog.get_logger("x")
log.debug("quiet")
log.info("mine", path=pathlib.Path("a"), rung=None)
logging.getLogger("uvicorn.error").warning("theirs %d", 5)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def lines(level: str) -> list[dict[str, object]]:
    done = subprocess.run([sys.executable, "-c", CODE.format(level=level)], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_lines_of_both_libraries_are_json_with_level_and_aware_time() -> None:
    mine, theirs, failed = lines("info")
    assert (mine["event"], mine["level"], mine["rung"]) == ("mine", "info", None)
    assert "a" in str(mine["path"])
    assert (theirs["event"], theirs["level"]) == ("theirs 5", "warning")
    assert "ZeroDivisionError" in str(failed["exception"])
    for line in (mine, theirs, failed):
        assert datetime.fromisoformat(str(line["timestamp"])).utcoffset() is not None


def test_lines_below_the_level_are_left_out() -> None:
    assert [line["event"] for line in lines("warning")] == ["theirs 5", "failed"]
    assert lines("debug")[0]["event"] == "quiet"

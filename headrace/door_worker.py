"""One worker of a door, as a process: `python -m headrace.door_worker`, started by `headrace.door_workers`.

It tells its supervisor two things on standard output: that it serves, or why it never will (and then ends with the exit
status `FAULT`). Everything else goes to standard error, as with a door that is alone.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from core_engine.errors import ConfigurationError, HeadraceError
from core_engine.settings import load_settings
from headrace.door_workers import FAULT, SERVING


def main() -> None:
    report = _take_standard_output()
    try:
        from headrace.door import run_door  # imports for a second: a setting at fault is told before

        run_door(load_settings(), on_serving=lambda: _tell(report, SERVING))
    except ConfigurationError as error:
        _tell(report, " ".join(str(error).split()))
        sys.exit(FAULT)
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")


def _tell(report: TextIO, line: str) -> None:
    report.write(f"{line}\n")
    report.flush()


def _take_standard_output() -> TextIO:
    """Standard output for the report alone: what any library prints goes to standard error from now on."""
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return report


if __name__ == "__main__":
    main()
